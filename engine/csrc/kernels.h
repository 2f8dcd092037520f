// The seam between the model and the instruction set: one table of functions per ISA, chosen at run time.
//
// Law of every kernel: the bits of a result depend on its own inputs alone, never on how many rows stand beside it.
// Products with weights are reduced over K in file order with a fixed lane pattern; attention runs over parts that
// begin at absolute multiples of 256 positions, joined in order. So a chunk equals the whole, and a request alone
// equals one in a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor.h"

namespace edge {

constexpr uint32_t kBlockTokens = 16;  // positions in one KV block
constexpr uint32_t kTileKeys = 64;     // positions that attention widens at once
constexpr uint32_t kPartKeys = 256;    // positions of one softmax
constexpr uint32_t kPanelRows = 32;    // weight rows dequantised at once
constexpr uint32_t kMaxGroup = 4;      // query heads of one KV head that share a pass over its keys
constexpr uint32_t kMaxQueries = 48;   // consecutive queries that share a pass over the keys
constexpr uint32_t kMaxHeadDim = 512;
constexpr uint32_t kPartHead = 16;  // floats before the values of a part: the largest score, the sum

// Activations as integers, for products with packed weights. Tokens stand in tiles of Kernels::token_tile, the last one
// shorter. Each 32 values x of a token become levels q and one scale:
//     most  = max |x|; if it is infinite or any x is NaN: scale = NaN, q = 0. If most < 2^-100: scale = 0, q = 0. Else
//     scale = most / top,  q = rint(x * (top / most)), ties to even; every operation rounded to f32 once.
// top is 127, and q a byte; or 32639, and q two signed bytes, 256 * high + low, each multiplied by itself.
// The product of row r and token t is the sum over blocks b in order, from 0, by two fused multiply-adds each:
//     y = fma(f32(q . w), d * scale, y);  Q4_1 then: y = fma(m, scale * f32(sum of q), y)
// with the levels w of the weights, their scale d and their minimum m. (The portable kernels do not fuse.)
struct Quantised {
    int8_t* levels = nullptr;   // [block][token of the tile][32]: q, or its high bytes
    int8_t* low = nullptr;      // its low bytes, like levels; null: q has none
    float* scales = nullptr;    // [block][token of the tile]
    float* sums = nullptr;      // scale * sum of the levels, like scales
    int32_t* biases = nullptr;  // -128 * sum of the levels, like scales
};

// Where products go: row r of token t to at[(index ? index[t] : t) * stride + r - row0].
struct Output {
    float* at;
    size_t stride;
    const uint32_t* index;
    bool add;  // to what stands there
};

// How keys and values lie in their blocks. f16: of a KV head, K [head_dim][16], then V [16][head_dim].
// int8: the same in levels of a byte, then the scales f16 of K [head_dim / 16][16], then those of V, likewise. 16
// values x of a token share a scale: s = f16(max |x| / 127), NaN if any x is not finite; level = rint(x / s), ties to
// even, within [-127, 127], and 0 where s is 0 or NaN. What attention reads is f32(level) * f32(s), which is exact.
enum class KvType : uint8_t { f16, int8 };

constexpr uint32_t kKvGroup = 16;

// Bytes of a KV head's 16 keys and values.
static constexpr size_t kv_head_bytes(KvType type, uint32_t head_dim) {
    if (type == KvType::f16) return size_t{2} * kBlockTokens * head_dim * sizeof(uint16_t);
    return size_t{2} * kBlockTokens * (head_dim + head_dim / kKvGroup * sizeof(uint16_t));
}

// Attention of `queries` consecutive positions of one sequence, over one KV head and `group` of its query heads.
struct Attend {
    const float* q;  // [queries][group][head_dim], queries `q_stride` floats apart
    size_t q_stride;
    uint32_t queries;     // <= kMaxQueries
    uint32_t first;       // position of the first query
    uint32_t group;       // <= kMaxGroup
    uint32_t head_dim;    // a multiple of 16
    const uint8_t* kv;    // block 0 of this layer and KV head
    size_t block_stride;  // in bytes
    KvType type;
    const uint32_t* blocks;  // the sequence's block table
    float* scratch;          // attend_scratch(head_dim) floats
};

static constexpr size_t part_floats(uint32_t head_dim) { return kPartHead + size_t{head_dim}; }

static constexpr size_t attend_scratch(uint32_t head_dim) {
    return size_t{kMaxQueries} * kMaxGroup * (kPartKeys + 2 * part_floats(head_dim)) + kTileKeys * size_t{head_dim};
}

struct Peak {
    uint32_t id;  // of the largest value; the lowest id among equals
    float value;
    bool finite;  // all values are finite
};

struct Kernels {
    const char* name;
    uint32_t token_tile;
    // y[t][r - row0] = dot(weights row r, x[t]) for rows [row0, row1) and `tokens` activations, by f32 arithmetic on
    // weights that are not packed. scratch: kPanelRows * cols floats.
    void (*matmul)(const Matrix& weights, uint32_t row0, uint32_t row1, const float* x, size_t x_stride,
                   uint32_t tokens, float* y, size_t y_stride, float* scratch);
    // The same for packed weights; row0 is a multiple of 16. `next`: the tile to fetch behind the last one, or null.
    void (*packed_matmul)(const Matrix& weights, uint32_t row0, uint32_t row1, const Quantised& x, uint32_t tokens,
                          const Output& y, const uint8_t* next);
    // Blocks [block, block + blocks) of token `token` of `tokens`, out of x [32 * blocks]; cols: of the whole token.
    void (*quantise)(const float* x, uint32_t block, uint32_t blocks, uint32_t cols, uint32_t token, uint32_t tokens,
                     const Quantised& out);
    void (*dequantise)(const Matrix& weights, uint32_t row, float* out);  // out [cols]
    void (*rms_norm)(const float* x, const float* weight, uint32_t n, float eps, float* out);
    void (*silu_mul)(float* gate, const float* up, uint32_t n);  // gate = gate * sigmoid(gate) * up
    // x[i] = x[i] * cosines[i] + x[i ^ 1] * sines[i]; n a multiple of 16.
    void (*rotate)(float* x, const float* cosines, const float* sines, uint32_t n);
    void (*to_f16)(const float* x, uint16_t* out, uint32_t n);       // n a multiple of 16
    void (*to_i8)(const float* x, int8_t* levels, uint16_t* scale);  // 16 values; KvType has the rule
    // out [queries][group][head_dim], queries `out_stride` floats apart.
    void (*attend)(const Attend& args, float* out, size_t out_stride);
    // The share of positions [256 * part, 256 * part + 256), for queries that see one of them; the part of query i and
    // head g goes to out + i * query_stride + g * head_stride.
    void (*attend_part)(const Attend& args, uint32_t part, float* out, size_t query_stride, size_t head_stride);
    // What attend gives, from all parts of a query and head, `count` of them one after another.
    void (*join_parts)(const float* parts, uint32_t count, uint32_t head_dim, float* out);
    Peak (*peak)(const float* x, uint32_t n);
    // out[i] = exp((x[i] - peak) / temperature); returns their sum. Double throughout, the same bits on every ISA.
    double (*softmax_weights)(const float* x, uint32_t n, float peak, double temperature, double* out);
};

// Names that this machine can run, best first: "avx512" (with VNNI), "avx2", "portable".
std::vector<std::string> available_isas();

// Throws std::invalid_argument for a name that is unknown or that this machine cannot run. Empty means the best.
const Kernels& kernels_for(const std::string& isa);

}  // namespace edge
