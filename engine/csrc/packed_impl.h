// Products of quantised activations with packed weights, for the Vec and Ints of the including file.
//
// Dot products are exact; the order of the rest is that of kernels.h. Tiles of 16 rows are read once, in one stream,
// with what lies behind fetched line by line.
#pragma once

#include <cstring>

#include "kernels.h"
#include "matmul_impl.h"
#include "unroll.h"

namespace {

using edge::kLineBytes;
using edge::kTileRows;
using edge::Output;
using edge::Quantised;

constexpr uint32_t kParts = kTileRows / Vec::width;

void quantise(const float* x, uint32_t block, uint32_t blocks, uint32_t cols, uint32_t token, uint32_t tokens,
              const Quantised& out) {
    const uint32_t first = token - token % Vec::token_tile;
    const uint32_t in_tile = tokens - first < Vec::token_tile ? tokens - first : Vec::token_tile;
    const size_t tile = size_t{first} * (cols / kBlockWeights);
    for (uint32_t b = block; b < block + blocks; ++b, x += kBlockWeights) {
        const size_t at = tile + size_t{b} * in_tile + token - first;
        int32_t sum = 0;
        int8_t* low = out.low ? out.low + at * kBlockWeights : nullptr;
        const float scale = quantise_block(x, out.levels + at * kBlockWeights, low, sum);
        out.scales[at] = scale;
        out.sums[at] = scale * static_cast<float>(sum);
        out.biases[at] = -128 * sum;
    }
}

// Vectors of 16 rows, tile by tile.
template <uint32_t tiles>
constexpr uint32_t kVectorsOf = tiles * kParts;

// dots[t] += levels of token t . a block of `tiles` row tiles, which lie `stride` bytes apart.
template <bool q4, uint32_t tiles, uint32_t tokens>
EDGE_INLINE void add_dots(const uint8_t* lines, size_t stride, const int8_t* levels,
                          Ints (&dots)[tokens][kVectorsOf<tiles>]) {
    constexpr uint32_t n = kVectorsOf<tiles>;
    EDGE_UNROLL(8)
    for (uint32_t line = 0; line < (q4 ? 4 : 8); ++line) {
        Ints w[n];
        for (uint32_t p = 0; p < n; ++p)
            w[p] = Ints::load(lines + p / kParts * stride + line * kLineBytes + p % kParts * kLineBytes / kParts);
        if constexpr (q4) {
            Ints high[n];
            for (uint32_t p = 0; p < n; ++p) high[p] = w[p].high_nibbles(), w[p] = w[p].low_nibbles();
            EDGE_UNROLL(16)
            for (uint32_t t = 0; t < tokens; ++t) {
                const Ints four = Ints::repeat(levels + t * kBlockWeights + 8 * line);
                for (uint32_t p = 0; p < n; ++p) dots[t][p] = add_nibble_dots(dots[t][p], w[p], four);
            }
            EDGE_UNROLL(16)
            for (uint32_t t = 0; t < tokens; ++t) {
                const Ints four = Ints::repeat(levels + t * kBlockWeights + 8 * line + 4);
                for (uint32_t p = 0; p < n; ++p) dots[t][p] = add_nibble_dots(dots[t][p], high[p], four);
            }
        } else {
            EDGE_UNROLL(16)
            for (uint32_t t = 0; t < tokens; ++t) {
                const Ints four = Ints::repeat(levels + t * kBlockWeights + 4 * line);
                for (uint32_t p = 0; p < n; ++p) dots[t][p] = add_byte_dots(dots[t][p], w[p], four);
            }
        }
    }
}

// The dot products of one block, exact until they become floats.
template <bool q4, bool wide, uint32_t tiles, uint32_t tokens>
EDGE_INLINE void block_dots(const uint8_t* lines, size_t stride, const int8_t* levels, const int8_t* low,
                            const int32_t* biases, Vec (&out)[tokens][kVectorsOf<tiles>]) {
    constexpr uint32_t n = kVectorsOf<tiles>;
    Ints dots[tokens][n], above[tokens][n];
    EDGE_UNROLL(16)
    for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t p = 0; p < n; ++p) dots[t][p] = q4 || wide ? Ints::zero() : Ints::set(biases[t]);
    add_dots<q4, tiles>(lines, stride, levels, dots);
    if constexpr (wide) {
        EDGE_UNROLL(16)
        for (uint32_t t = 0; t < tokens; ++t)
            for (uint32_t p = 0; p < n; ++p) {
                above[t][p] =
                    q4 ? dots[t][p].nibble_sums().times_256() : dots[t][p].times_256().plus(Ints::set(biases[t]));
                dots[t][p] = q4 ? Ints::nibbles_after(above[t][p]) : above[t][p];
            }
        add_dots<q4, tiles>(lines, stride, low, dots);
    }
    EDGE_UNROLL(16)
    for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t p = 0; p < n; ++p)
            out[t][p] =
                (q4 ? wide ? dots[t][p].nibbles_with(above[t][p]) : dots[t][p].nibble_sums() : dots[t][p]).floats();
}

// Where the activations of a token begin, and those of its next block: `step` tokens later.
struct Place {
    Quantised x;
    uint32_t step;
};

// `tiles` row tiles, of `size` bytes each, x `tokens` tokens of one token tile; wide: activations have low bytes.
template <DType type, bool wide, uint32_t tiles, uint32_t tokens>
inline void multiply(const uint8_t* tile, size_t size, uint32_t blocks, const Place& place, const uint8_t* ahead,
                     Vec (&y)[tokens][kVectorsOf<tiles>]) {
    constexpr bool q4 = type == DType::q4_1x16;
    constexpr size_t block_bytes = q4 ? edge::kQ4Tile : edge::kQ8Pair / 2;
    constexpr uint32_t n = kVectorsOf<tiles>;
    const uint32_t step = place.step;
    const int8_t *levels = place.x.levels, *low = place.x.low;
    const float *scales = place.x.scales, *sums = place.x.sums;
    const int32_t* biases = place.x.biases;
    EDGE_UNROLL(16)
    for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t p = 0; p < n; ++p) y[t][p] = Vec::zero();
    for (uint32_t b = 0; b < blocks; ++b) {
        const uint8_t *lines, *weight_scales;
        if constexpr (q4) {
            lines = tile + b * edge::kQ4Tile;
            weight_scales = lines + 4 * kLineBytes;
        } else {
            const uint8_t* pair = tile + b / 2 * edge::kQ8Pair;
            lines = pair + b % 2 * edge::kQ8Half;
            weight_scales =
                b % 2 == 0 && b + 1 == blocks ? pair + edge::kQ8Half : pair + 2 * edge::kQ8Half + b % 2 * 2 * kTileRows;
        }
        if (ahead)
            for (uint32_t i = 0; i < tiles; ++i)
                for (size_t at = 0; at < block_bytes; at += kLineBytes)
                    __builtin_prefetch(ahead + i * size + b * block_bytes + at);
        Vec dots[tokens][n];
        block_dots<q4, wide, tiles>(lines, size, levels, low, biases, dots);
        for (uint32_t p = 0; p < n; ++p) {
            const auto* halves =
                reinterpret_cast<const uint16_t*>(weight_scales + p / kParts * size) + p % kParts * Vec::width;
            const Vec d = Vec::load_f16(halves);
            const Vec m = q4 ? Vec::load_f16(halves + kTileRows) : d;
            EDGE_UNROLL(16)
            for (uint32_t t = 0; t < tokens; ++t) {
                y[t][p] = fma(dots[t][p], d * Vec::set(scales[t]), y[t][p]);
                if (q4) y[t][p] = fma(m, Vec::set(sums[t]), y[t][p]);
            }
        }
        levels += step * kBlockWeights;
        if (wide) low += step * kBlockWeights;
        scales += step, sums += step, biases += step;
    }
}

inline void put(const Vec* sums, float* out, bool add, uint32_t valid) {
    float rows[kTileRows];
    float* to = valid == kTileRows ? out : rows;
    if (valid < kTileRows && add) std::memcpy(rows, out, valid * sizeof(float));
    for (uint32_t p = 0; p < kParts; ++p)
        (add ? Vec::load(to + p * Vec::width) + sums[p] : sums[p]).store(to + p * Vec::width);
    if (valid < kTileRows) std::memcpy(out, rows, valid * sizeof(float));
}

// Products of all tokens with the rows [0, valid) of `tiles` row tiles, to the columns of y from `column` on.
template <DType type, bool wide, uint32_t tiles>
void multiply_tiles(const Matrix& weights, const uint8_t* tile, uint32_t valid, const Quantised& x, uint32_t tokens,
                    const Output& y, uint32_t column, const uint8_t* ahead) {
    constexpr uint32_t most = Vec::token_tile / tiles;
    const uint32_t cols = weights.cols, blocks = cols / kBlockWeights;
    const size_t size = edge::tile_bytes(type, cols);
    for (uint32_t t = 0, some; t < tokens; t += some) {
        const uint32_t within = t % Vec::token_tile, first = t - within;
        const uint32_t in_tile = tokens - first < Vec::token_tile ? tokens - first : Vec::token_tile;
        const size_t block = size_t{first} * blocks + within, level = block * kBlockWeights;
        const Place place{
            {x.levels + level, wide ? x.low + level : nullptr, x.scales + block, x.sums + block, x.biases + block},
            in_tile};
        some = in_tile - within < most ? in_tile - within : most;
        with_constant<most>(some, [&](auto n) {
            Vec sums[n][kVectorsOf<tiles>];
            multiply<type, wide, tiles, n>(tile, size, blocks, place, t == 0 ? ahead : nullptr, sums);
            for (uint32_t i = 0; i < n; ++i)
                for (uint32_t j = 0; j < tiles; ++j) {
                    const size_t row = y.index ? y.index[t + i] : t + i;
                    const uint32_t left = valid - j * kTileRows;
                    put(sums[i] + j * kParts, y.at + row * y.stride + column + j * kTileRows, y.add,
                        left < kTileRows ? left : kTileRows);
                }
        });
    }
}

// Many tokens share what is broadcast of them among several row tiles; few are faster with one stream of weights.
template <DType type, bool wide>
void packed_matmul_of(const Matrix& weights, uint32_t row0, uint32_t row1, const Quantised& x, uint32_t tokens,
                      const Output& y, const uint8_t* next) {
    const size_t size = edge::tile_bytes(type, weights.cols);
    const uint8_t* tile = weights.data + row0 / kTileRows * size;
    for (uint32_t r = row0; r < row1;) {
        const bool several = tokens >= Vec::tiles_from && row1 - r > (Vec::row_tiles - 1) * kTileRows;
        const uint32_t rows = several ? Vec::row_tiles * kTileRows : kTileRows;
        const uint32_t valid = row1 - r < rows ? row1 - r : rows;
        const uint8_t* behind = tile + rows / kTileRows * size;
        const uint8_t* ahead = r + rows < row1 || !next ? behind : next;
        if (several)
            multiply_tiles<type, wide, Vec::row_tiles>(weights, tile, valid, x, tokens, y, r - row0, ahead);
        else
            multiply_tiles<type, wide, 1>(weights, tile, valid, x, tokens, y, r - row0, ahead);
        r += rows, tile = behind;
    }
}

template <DType type>
void packed_matmul_of(const Matrix& weights, uint32_t row0, uint32_t row1, const Quantised& x, uint32_t tokens,
                      const Output& y, const uint8_t* next) {
    if (x.low)
        packed_matmul_of<type, true>(weights, row0, row1, x, tokens, y, next);
    else
        packed_matmul_of<type, false>(weights, row0, row1, x, tokens, y, next);
}

void packed_matmul(const Matrix& weights, uint32_t row0, uint32_t row1, const Quantised& x, uint32_t tokens,
                   const Output& y, const uint8_t* next) {
    if (weights.dtype == DType::q4_1x16)
        packed_matmul_of<DType::q4_1x16>(weights, row0, row1, x, tokens, y, next);
    else
        packed_matmul_of<DType::q8_0x16>(weights, row0, row1, x, tokens, y, next);
}

}  // namespace
