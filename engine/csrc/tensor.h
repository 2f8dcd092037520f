// Weight matrices: rows of K weights, K in blocks of 32. Either as they lie in the GGUF file, row after row, or packed
// into tiles of 16 rows for integer dot products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge {

enum class DType : uint8_t { f32, f16, q4_1, q8_0, q4_1x16, q8_0x16 };

constexpr uint32_t kBlockWeights = 32;
constexpr uint32_t kTileRows = 16;         // rows of a packed tile
constexpr uint32_t kPackedAlignment = 64;  // of a packed matrix in its file, and of a tile in the matrix

static constexpr bool is_packed(DType dtype) { return dtype == DType::q4_1x16 || dtype == DType::q8_0x16; }

// The type of the blocks that a packed type holds; another type is its own.
static constexpr DType block_type(DType dtype) {
    return dtype == DType::q4_1x16 ? DType::q4_1 : dtype == DType::q8_0x16 ? DType::q8_0 : dtype;
}

// Bytes of 32 weights. q4_1: f16 scale, f16 minimum, 16 bytes of nibbles (byte j holds weight j low, weight 16+j high).
// q8_0: f16 scale, 32 signed bytes.
static constexpr size_t block_bytes(DType dtype) {
    switch (block_type(dtype)) {
        case DType::f32: return 128;
        case DType::f16: return 64;
        case DType::q4_1: return 20;
        case DType::q8_0: return 34;
        default: return 0;
    }
}

static constexpr size_t row_bytes(DType dtype, uint32_t cols) { return cols / kBlockWeights * block_bytes(dtype); }

// A tile holds its 16 rows' blocks in K order. Lines have 64 bytes; byte 4r + i of a line belongs to row r.
// q4_1x16: a block is 4 lines, then scales f16 [16], then minima f16 [16]. Line j holds weight 8j + i in the low nibble
// and weight 8j + 4 + i in the high one.
// q8_0x16: blocks come in pairs: 8 lines each, then scales f16 [2][16]. Line j of a block holds weight 4j + i, plus
// 128. An odd last block is followed by its scales f16 [16] and 32 bytes of zero.
constexpr size_t kLineBytes = 64;
constexpr size_t kQ4Tile = 4 * kLineBytes + 64;  // one block of 16 rows
constexpr size_t kQ8Half = 8 * kLineBytes;       // one block of 16 rows, without its scales
constexpr size_t kQ8Pair = 2 * kQ8Half + 64;     // two blocks of 16 rows
constexpr size_t kQ8Single = kQ8Half + 64;       // an odd last one

static constexpr size_t tile_bytes(DType dtype, uint32_t cols) {
    const size_t blocks = cols / kBlockWeights;
    return dtype == DType::q4_1x16 ? blocks * kQ4Tile : blocks / 2 * kQ8Pair + blocks % 2 * kQ8Single;
}

static constexpr size_t matrix_bytes(DType dtype, uint32_t rows, uint32_t cols) {
    if (is_packed(dtype)) return (size_t{rows} + kTileRows - 1) / kTileRows * tile_bytes(dtype, cols);
    return rows * row_bytes(dtype, cols);
}

struct Matrix {
    const uint8_t* data = nullptr;
    DType dtype = DType::f32;
    uint32_t rows = 0;  // outputs
    uint32_t cols = 0;  // inputs, a multiple of 32
};

}  // namespace edge
