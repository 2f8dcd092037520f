// Weight matrices as they lie in the GGUF file: rows of K weights, K in blocks of 32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge {

enum class DType : uint8_t { f32, f16, q4_1, q8_0 };

constexpr uint32_t kBlockWeights = 32;

// Bytes of 32 weights. q4_1: f16 scale, f16 minimum, 16 bytes of nibbles (byte j holds weight j low, weight 16+j high).
// q8_0: f16 scale, 32 signed bytes.
static constexpr size_t block_bytes(DType dtype) {
    switch (dtype) {
        case DType::f32: return 128;
        case DType::f16: return 64;
        case DType::q4_1: return 20;
        case DType::q8_0: return 34;
    }
    return 0;
}

static constexpr size_t row_bytes(DType dtype, uint32_t cols) { return cols / kBlockWeights * block_bytes(dtype); }

struct Matrix {
    const uint8_t* data = nullptr;
    DType dtype = DType::f32;
    uint32_t rows = 0;  // outputs
    uint32_t cols = 0;  // inputs, a multiple of 32
};

}  // namespace edge
