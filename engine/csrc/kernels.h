// The seam between the model and the instruction set: one table of functions per ISA, chosen at run time.
//
// Law of every kernel: the bits of a result depend on its own inputs alone, never on how many rows stand beside it.
// Products with weights are reduced over K in file order with a fixed lane pattern; attention runs over tiles that
// begin at absolute multiples of 64 positions. So a chunk equals the whole, and a request alone equals one in a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor.h"

namespace edge {

constexpr uint32_t kBlockTokens = 16;  // positions in one KV block
constexpr uint32_t kTileKeys = 64;     // positions in one attention tile
constexpr uint32_t kPanelRows = 32;    // weight rows dequantised at once
constexpr uint32_t kMaxGroup = 4;      // query heads of one KV head that share a pass over its keys
constexpr uint32_t kMaxQueries = 16;   // consecutive queries that share a pass over the keys

// Attention of `queries` consecutive positions of one sequence, over one KV head and its `group` query heads.
struct Attend {
    const float* q;  // [queries][group][head_dim], rows `q_stride` floats apart
    size_t q_stride;
    float* out;  // like q
    size_t out_stride;
    uint32_t queries;  // <= kMaxQueries
    uint32_t first;    // position of the first query
    uint32_t group;
    uint32_t head_dim;       // a multiple of 16
    const uint16_t* kv;      // block 0 of this layer and KV head: K f16 [head_dim][16], then V f16 [16][head_dim]
    size_t block_stride;     // in f16 elements
    const uint32_t* blocks;  // the sequence's block table
    float* scratch;          // attend_scratch(head_dim) floats
};

static constexpr size_t attend_scratch(uint32_t head_dim) {
    return size_t{2} * kTileKeys * head_dim + kMaxGroup * kTileKeys;
}

struct Peak {
    uint32_t id;  // of the largest value; the lowest id among equals
    float value;
    bool finite;  // all values are finite
};

struct Kernels {
    const char* name;
    // y[t][r] = dot(weights row r, x[t]) for rows [row0, row1) and `tokens` activations; `y` points at row 0.
    // scratch: kPanelRows * cols floats.
    void (*matmul)(const Matrix& weights, uint32_t row0, uint32_t row1, const float* x, size_t x_stride,
                   uint32_t tokens, float* y, size_t y_stride, float* scratch);
    void (*dequantise)(const Matrix& weights, uint32_t row, float* out);  // out [cols]
    void (*rms_norm)(const float* x, const float* weight, uint32_t n, float eps, float* out);
    void (*silu_mul)(float* gate, const float* up, uint32_t n);  // gate = gate * sigmoid(gate) * up
    void (*to_f16)(const float* x, uint16_t* out, uint32_t n);   // n a multiple of 16
    void (*attend)(const Attend& args);
    Peak (*peak)(const float* x, uint32_t n);
    // out[i] = exp((x[i] - peak) / temperature); returns their sum. Double throughout, the same bits on every ISA.
    double (*softmax_weights)(const float* x, uint32_t n, float peak, double temperature, double* out);
};

// Names that this machine can run, best first: "avx512", "avx2", "portable".
std::vector<std::string> available_isas();

// Throws std::invalid_argument for a name that is unknown or that this machine cannot run. Empty means the best.
const Kernels& kernels_for(const std::string& isa);

}  // namespace edge
