// Products of quantised activations with packed weights, for the Vec and Ints of the including file.
//
// Dot products are exact; the order of the rest is that of kernels.h. A tile of 16 rows is read once, in one stream,
// with the tile behind it fetched line by line.
#pragma once

#include <cstring>

#include "kernels.h"
#include "matmul_impl.h"

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
        const float scale = quantise_block(x, out.levels + at * kBlockWeights, sum);
        out.scales[at] = scale;
        out.sums[at] = scale * static_cast<float>(sum);
        out.biases[at] = -128 * sum;
    }
}

// A tile of 16 rows x `tokens` tokens of one token tile.
template <DType type, uint32_t tokens>
inline void multiply(const uint8_t* tile, uint32_t blocks, const Quantised& x, const uint8_t* ahead,
                     Vec (&y)[tokens][kParts]) {
    constexpr bool q4 = type == DType::q4_1x16;
    constexpr size_t step = q4 ? edge::kQ4Tile : edge::kQ8Pair / 2;
    const int8_t* levels = x.levels;
    const float *scales = x.scales, *sums = x.sums;
    const int32_t* biases = x.biases;
#pragma GCC unroll 16
    for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t p = 0; p < kParts; ++p) y[t][p] = Vec::zero();
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
            for (size_t i = 0; i < step; i += kLineBytes) __builtin_prefetch(ahead + b * step + i);
        Ints dots[tokens][kParts];
#pragma GCC unroll 16
        for (uint32_t t = 0; t < tokens; ++t)
            for (uint32_t p = 0; p < kParts; ++p) dots[t][p] = q4 ? Ints::zero() : Ints::set(biases[t]);
#pragma GCC unroll 8
        for (uint32_t line = 0; line < (q4 ? 4 : 8); ++line) {
            Ints w[kParts];
            for (uint32_t p = 0; p < kParts; ++p)
                w[p] = Ints::load(lines + line * kLineBytes + p * kLineBytes / kParts);
            if constexpr (q4) {
                Ints high[kParts];
                for (uint32_t p = 0; p < kParts; ++p) high[p] = w[p].high_nibbles(), w[p] = w[p].low_nibbles();
#pragma GCC unroll 16
                for (uint32_t t = 0; t < tokens; ++t) {
                    const Ints four = Ints::repeat(levels + t * kBlockWeights + 8 * line);
                    for (uint32_t p = 0; p < kParts; ++p) dots[t][p] = add_nibble_dots(dots[t][p], w[p], four);
                }
#pragma GCC unroll 16
                for (uint32_t t = 0; t < tokens; ++t) {
                    const Ints four = Ints::repeat(levels + t * kBlockWeights + 8 * line + 4);
                    for (uint32_t p = 0; p < kParts; ++p) dots[t][p] = add_nibble_dots(dots[t][p], high[p], four);
                }
            } else {
#pragma GCC unroll 16
                for (uint32_t t = 0; t < tokens; ++t) {
                    const Ints four = Ints::repeat(levels + t * kBlockWeights + 4 * line);
                    for (uint32_t p = 0; p < kParts; ++p) dots[t][p] = add_byte_dots(dots[t][p], w[p], four);
                }
            }
        }
        for (uint32_t p = 0; p < kParts; ++p) {
            const auto* halves = reinterpret_cast<const uint16_t*>(weight_scales) + p * Vec::width;
            const Vec d = Vec::load_f16(halves);
            const Vec m = q4 ? Vec::load_f16(halves + kTileRows) : d;
#pragma GCC unroll 16
            for (uint32_t t = 0; t < tokens; ++t) {
                const Vec dot = q4 ? dots[t][p].nibble_dots() : dots[t][p].byte_dots();
                y[t][p] = fma(dot, d * Vec::set(scales[t]), y[t][p]);
                if (q4) y[t][p] = fma(m, Vec::set(sums[t]), y[t][p]);
            }
        }
        levels += tokens * kBlockWeights;
        scales += tokens, sums += tokens, biases += tokens;
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

template <DType type>
void packed_matmul_of(const Matrix& weights, uint32_t row0, uint32_t row1, const Quantised& x, uint32_t tokens,
                      const Output& y, const uint8_t* next) {
    const uint32_t blocks = weights.cols / kBlockWeights;
    const size_t size = edge::tile_bytes(type, weights.cols);
    const uint8_t* tile = weights.data + row0 / kTileRows * size;
    for (uint32_t r = row0; r < row1; r += kTileRows, tile += size) {
        const uint32_t valid = row1 - r < kTileRows ? row1 - r : kTileRows;
        const uint8_t* ahead = r + kTileRows < row1 || !next ? tile + size : next;
        for (uint32_t t = 0; t < tokens; t += Vec::token_tile) {
            const Quantised from{x.levels + size_t{t} * weights.cols, x.scales + size_t{t} * blocks,
                                 x.sums + size_t{t} * blocks, x.biases + size_t{t} * blocks};
            const uint32_t some = tokens - t < Vec::token_tile ? tokens - t : Vec::token_tile;
            with_constant<Vec::token_tile>(some, [&](auto n) {
                Vec sums[n][kParts];
                multiply<type, n>(tile, blocks, from, t == 0 ? ahead : nullptr, sums);
                for (uint32_t i = 0; i < n; ++i) {
                    const size_t row = y.index ? y.index[t + i] : t + i;
                    put(sums[i], y.at + row * y.stride + (r - row0), y.add, valid);
                }
            });
        }
    }
}

void packed_matmul(const Matrix& weights, uint32_t row0, uint32_t row1, const Quantised& x, uint32_t tokens,
                   const Output& y, const uint8_t* next) {
    if (weights.dtype == DType::q4_1x16)
        packed_matmul_of<DType::q4_1x16>(weights, row0, row1, x, tokens, y, next);
    else
        packed_matmul_of<DType::q8_0x16>(weights, row0, row1, x, tokens, y, next);
}

}  // namespace
