// Causal attention over paged KV with an online softmax (Milakov and Gimelshein, 2018), for the Vec of the including
// file.
#pragma once

#include "elementwise_impl.h"
#include "kernels.h"

namespace {

using edge::Attend;
using edge::kBlockTokens;
using edge::kMaxGroup;
using edge::kMaxQueries;
using edge::kTileKeys;

// c[g][0..vectors) += sum over i < n of a[g][i] * b[i][0..vectors), i ascending.
template <uint32_t group, uint32_t vectors>
inline void accumulate_columns(const float* a, size_t a_stride, uint32_t n, const float* b, size_t b_stride, float* c,
                               size_t c_stride) {
    Vec acc[group][vectors];
    for (uint32_t g = 0; g < group; ++g)
        for (uint32_t j = 0; j < vectors; ++j) acc[g][j] = Vec::load(c + g * c_stride + j * Vec::width);
    for (uint32_t i = 0; i < n; ++i) {
        Vec in[vectors];
        for (uint32_t j = 0; j < vectors; ++j) in[j] = Vec::load(b + i * b_stride + j * Vec::width);
        for (uint32_t g = 0; g < group; ++g) {
            const Vec scale = Vec::set(a[g * a_stride + i]);
            for (uint32_t j = 0; j < vectors; ++j) acc[g][j] = fma(scale, in[j], acc[g][j]);
        }
    }
    for (uint32_t g = 0; g < group; ++g)
        for (uint32_t j = 0; j < vectors; ++j) acc[g][j].store(c + g * c_stride + j * Vec::width);
}

// The same over `cols` columns, a multiple of 16.
template <uint32_t group>
inline void accumulate(const float* a, size_t a_stride, uint32_t n, const float* b, size_t b_stride, float* c,
                       size_t c_stride, uint32_t cols) {
    uint32_t at = 0;
    for (; at + Vec::outer_vectors * Vec::width <= cols; at += Vec::outer_vectors * Vec::width)
        accumulate_columns<group, Vec::outer_vectors>(a, a_stride, n, b + at, b_stride, c + at, c_stride);
    for (; at < cols; at += Vec::width)
        accumulate_columns<group, 1>(a, a_stride, n, b + at, b_stride, c + at, c_stride);
}

struct Softmax {
    float most;  // largest score so far
    float sum;   // of exp(score - most)
};

// Turns 64 scores into weights exp(score - most), zero from `n` on; returns the factor for what was summed before.
inline float weigh(float* scores, uint32_t n, float scale, Softmax& state) {
    const Vec lowest = Vec::set(-__builtin_inff());
    Vec most = Vec::set(state.most);
    for (uint32_t i = 0; i < kTileKeys; i += Vec::width) {
        const Vec s = first_lanes(n > i ? n - i : 0, Vec::load(scores + i) * Vec::set(scale), lowest);
        s.store(scores + i);
        most = max(most, s);
    }
    const Vec peak = Vec::set(most.largest());
    Vec sum = Vec::zero();
    for (uint32_t i = 0; i < kTileKeys; i += Vec::width) {
        const Vec p = first_lanes(n > i ? n - i : 0, exp(Vec::load(scores + i) - peak), Vec::zero());
        p.store(scores + i);
        sum = sum + p;
    }
    const float factor = exp(Vec::set(state.most) - peak).lane0();
    state.most = peak.lane0();
    state.sum = state.sum * factor + sum.sum();
    return factor;
}

// One tile for one query and `group` heads of one KV head; keys [0, n) of the tile are visible.
template <uint32_t group>
inline void attend_tile(const float* q, float* out, uint32_t head_dim, float scale, uint32_t n, const float* keys,
                        const float* values, float* scores, Softmax* state) {
    std::memset(scores, 0, group * kTileKeys * sizeof(float));
    accumulate<group>(q, head_dim, head_dim, keys, kTileKeys, scores, kTileKeys, (n + 15) / 16 * 16);
    for (uint32_t g = 0; g < group; ++g) {
        const Vec factor = Vec::set(weigh(scores + g * kTileKeys, n, scale, state[g]));
        for (uint32_t d = 0; d < head_dim; d += Vec::width)
            (Vec::load(out + g * head_dim + d) * factor).store(out + g * head_dim + d);
    }
    accumulate<group>(scores, kTileKeys, n, values, head_dim, out, head_dim, head_dim);
}

// Widens the tile that begins at position `tile` to f32: keys [head_dim][64], values [64][head_dim]. Positions that no
// one wrote yet are widened too, and masked later.
inline void load_tile(const Attend& args, uint32_t tile, uint32_t last, float* keys, float* values) {
    const uint32_t blocks = (last < tile + kTileKeys - 1 ? last - tile : kTileKeys - 1) / kBlockTokens + 1;
    for (uint32_t j = 0; j < blocks; ++j) {
        const uint16_t* k = args.kv + args.blocks[tile / kBlockTokens + j] * args.block_stride;
        const uint16_t* v = k + size_t{args.head_dim} * kBlockTokens;
        for (uint32_t d = 0; d < args.head_dim; ++d)
            for (uint32_t i = 0; i < kBlockTokens; i += Vec::width)
                Vec::load_f16(k + d * kBlockTokens + i).store(keys + d * kTileKeys + j * kBlockTokens + i);
        float* to = values + size_t{j} * kBlockTokens * args.head_dim;
        for (uint32_t i = 0; i < kBlockTokens * args.head_dim; i += Vec::width) Vec::load_f16(v + i).store(to + i);
    }
}

// Heads [from, from + group) of the group, all tiles, all queries.
template <uint32_t group>
void attend_heads(const Attend& args, uint32_t from) {
    const uint32_t dim = args.head_dim, last = args.first + args.queries - 1;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
    float* keys = args.scratch;
    float* values = keys + size_t{kTileKeys} * dim;
    float* scores = values + size_t{kTileKeys} * dim;
    Softmax state[kMaxQueries][group];
    for (uint32_t i = 0; i < args.queries; ++i) {
        std::memset(args.out + i * args.out_stride + from * dim, 0, group * dim * sizeof(float));
        for (Softmax& s : state[i]) s = {-__builtin_inff(), 0.0f};
    }
    for (uint32_t tile = 0; tile <= last; tile += kTileKeys) {
        load_tile(args, tile, last, keys, values);
        for (uint32_t i = tile > args.first ? tile - args.first : 0; i < args.queries; ++i) {
            const uint32_t visible = args.first + i + 1 - tile;
            attend_tile<group>(args.q + i * args.q_stride + from * dim, args.out + i * args.out_stride + from * dim,
                               dim, scale, visible < kTileKeys ? visible : kTileKeys, keys, values, scores, state[i]);
        }
    }
    for (uint32_t i = 0; i < args.queries; ++i)
        for (uint32_t g = 0; g < group; ++g) {
            float* out = args.out + i * args.out_stride + (from + g) * dim;
            const Vec share = Vec::set(1.0f / state[i][g].sum);
            for (uint32_t d = 0; d < dim; d += Vec::width) (Vec::load(out + d) * share).store(out + d);
        }
}

void attend(const Attend& args) {
    for (uint32_t from = 0; from < args.group; from += kMaxGroup) switch (args.group - from) {
            case 1: attend_heads<1>(args, from); break;
            case 2: attend_heads<2>(args, from); break;
            case 3: attend_heads<3>(args, from); break;
            default: attend_heads<kMaxGroup>(args, from);
        }
}

}  // namespace
