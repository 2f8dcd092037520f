// Causal attention over paged KV with an online softmax (Milakov and Gimelshein, 2018), for the Vec of the including
// file.
//
// Positions are cut into parts of 256. In a part every query has its scores, their softmax and the values summed with
// its weights; parts are joined in order. A query and head is a row: what is done for it does not depend on the rows
// beside it.
#pragma once

#include "elementwise_impl.h"
#include "kernels.h"
#include "matmul_impl.h"
#include "unroll.h"

namespace {

using edge::Attend;
using edge::kBlockTokens;
using edge::kKvGroup;
using edge::kMaxGroup;
using edge::kMaxQueries;
using edge::kPartHead;
using edge::kPartKeys;
using edge::kTileKeys;
using edge::KvType;
using edge::part_floats;

constexpr uint32_t kTileBlocks = kTileKeys / kBlockTokens;
// Up to so many rows read keys and values as f16; for more they are widened first.
constexpr uint32_t kDirectRows = kMaxGroup;

inline Vec load_kv(const uint16_t* p) { return Vec::load_f16(p); }
inline Vec load_kv(const float* p) { return Vec::load(p); }

// The keys or the values of a tile's blocks, and what will be read next.
template <class T>
struct Tile {
    const T* blocks[kTileBlocks];
    const uint8_t* ahead[kTileBlocks];

    void fetch(size_t element) const {
        for (const uint8_t* block : ahead) __builtin_prefetch(block + element * sizeof(uint16_t));
    }
};

// scores[r][0..64) = q[r] . keys, summed over the dimensions in order.
template <uint32_t rows, class T>
inline void score(const float* const* q, const Tile<T>& keys, uint32_t dim, float* scores) {
    constexpr uint32_t n = Vec::outer_vectors, per_block = kBlockTokens / Vec::width;
    for (uint32_t v = 0; v < kTileKeys / Vec::width; v += n) {
        Vec acc[rows][n];
        const T* from[n];
        for (uint32_t j = 0; j < n; ++j) from[j] = keys.blocks[(v + j) / per_block] + (v + j) % per_block * Vec::width;
        EDGE_UNROLL(8)
        for (uint32_t r = 0; r < rows; ++r)
            for (uint32_t j = 0; j < n; ++j) acc[r][j] = Vec::zero();
        for (uint32_t d = 0; d < dim; ++d) {
            if (sizeof(T) == 2 && v == 0 && d % 2 == 0) keys.fetch(d * kBlockTokens);
            Vec k[n];
            for (uint32_t j = 0; j < n; ++j) k[j] = load_kv(from[j] + d * kBlockTokens);
            EDGE_UNROLL(8)
            for (uint32_t r = 0; r < rows; ++r) {
                const Vec x = Vec::set(q[r][d]);
                for (uint32_t j = 0; j < n; ++j) acc[r][j] = fma(x, k[j], acc[r][j]);
            }
        }
        EDGE_UNROLL(8)
        for (uint32_t r = 0; r < rows; ++r)
            for (uint32_t j = 0; j < n; ++j) acc[r][j].store(scores + r * kPartKeys + (v + j) * Vec::width);
    }
}

// out[r] += weights[r][from..to) . values, keys in order, for `n` vectors of dimensions.
template <uint32_t rows, uint32_t n, class T>
inline void mix_columns(const float* weights, const Tile<T>& values, uint32_t from, uint32_t to, uint32_t dim,
                        uint32_t column, float* out, size_t out_stride) {
    Vec acc[rows][n];
    EDGE_UNROLL(8)
    for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t j = 0; j < n; ++j) acc[r][j] = Vec::load(out + r * out_stride + column + j * Vec::width);
    for (uint32_t k = from; k < to;) {
        const uint32_t end = to < (k | (kBlockTokens - 1)) + 1 ? to : (k | (kBlockTokens - 1)) + 1;
        const T* block = values.blocks[k / kBlockTokens] + column;
        for (; k < end; ++k) {
            if (sizeof(T) == 2 && column == 0 && k % 2 == 0)
                for (uint32_t i = 0; i < dim / 2; i += 32) values.fetch(k * dim / 4 + i);
            const T* value = block + k % kBlockTokens * dim;
            Vec in[n];
            for (uint32_t j = 0; j < n; ++j) in[j] = load_kv(value + j * Vec::width);
            EDGE_UNROLL(8)
            for (uint32_t r = 0; r < rows; ++r) {
                const Vec weight = Vec::set(weights[r * kPartKeys + k]);
                for (uint32_t j = 0; j < n; ++j) acc[r][j] = fma(weight, in[j], acc[r][j]);
            }
        }
    }
    EDGE_UNROLL(8)
    for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t j = 0; j < n; ++j) acc[r][j].store(out + r * out_stride + column + j * Vec::width);
}

template <uint32_t rows, class T>
inline void mix(const float* weights, const Tile<T>& values, uint32_t from, uint32_t to, uint32_t dim, float* out,
                size_t out_stride) {
    uint32_t column = 0;
    for (; column + Vec::outer_vectors * Vec::width <= dim; column += Vec::outer_vectors * Vec::width)
        mix_columns<rows, Vec::outer_vectors>(weights, values, from, to, dim, column, out, out_stride);
    for (; column < dim; column += Vec::width)
        mix_columns<rows, 1>(weights, values, from, to, dim, column, out, out_stride);
}

// 2^x for x <= 0 to 1.5 ulp or so, by a polynomial on [-0.5, 0.5]. Below -126 it stays there; NaN stays NaN.
inline Vec exp2_below_1(Vec x) {
    x = max(Vec::set(-126.0f), x);
    const Vec shifted = x + Vec::set(0x1.8p23f);
    const Vec r = x - (shifted - Vec::set(0x1.8p23f));
    Vec p = Vec::set(0x1.5c08dcp-10f);
    p = fma(p, r, Vec::set(0x1.3d0c52p-7f));
    p = fma(p, r, Vec::set(0x1.c6b6e6p-5f));
    p = fma(p, r, Vec::set(0x1.ebf918p-3f));
    p = fma(p, r, Vec::set(0x1.62e428p-1f));
    p = fma(p, r, Vec::set(1.0f));
    return p * power_of_two(shifted);
}

// Turns the first `n` scores into weights 2^(score * scale - most); part[0] = most, part[1] = their sum.
inline void weigh(float* scores, uint32_t n, float scale, float* part) {
    const uint32_t whole = n / Vec::width * Vec::width, tail = n - whole;
    Vec most = Vec::set(-__builtin_inff());
    if (tail) most = first_lanes(tail, Vec::load(scores + whole), most);
    for (uint32_t i = 0; i < whole; i += Vec::width) most = max(most, Vec::load(scores + i));
    part[0] = most.largest() * scale;
    const Vec factor = Vec::set(scale), shift = Vec::set(-part[0]);
    Vec sum = Vec::zero();
    for (uint32_t i = 0; i < whole; i += Vec::width) {
        const Vec p = exp2_below_1(fma(Vec::load(scores + i), factor, shift));
        p.store(scores + i);
        sum = sum + p;
    }
    if (tail) {
        const Vec p = exp2_below_1(fma(Vec::load(scores + whole), factor, shift));
        sum = sum + first_lanes(tail, p, Vec::zero());
        p.store(scores + whole);
    }
    part[1] = sum.sum();
}

inline void begin_row(float* row, uint32_t dim) {
    std::memset(row, 0, part_floats(dim) * sizeof(float));
    row[0] = -__builtin_inff();
}

// row: what the parts before gave together.
inline void join(float* row, const float* part, uint32_t dim) {
    const float most = row[0] > part[0] ? row[0] : part[0];
    const Vec old_share = exp2_below_1(Vec::set(row[0] - most)), share = exp2_below_1(Vec::set(part[0] - most));
    row[0] = most;
    row[1] = row[1] * old_share.lane0() + part[1] * share.lane0();
    for (uint32_t d = kPartHead; d < kPartHead + dim; d += Vec::width)
        fma(Vec::load(row + d), old_share, Vec::load(part + d) * share).store(row + d);
}

inline void finish(const float* row, uint32_t dim, float* out) {
    const Vec share = Vec::set(1.0f / row[1]);
    for (uint32_t d = 0; d < dim; d += Vec::width) (Vec::load(row + kPartHead + d) * share).store(out + d);
}

inline void widen_f16(const uint16_t* from, uint32_t size, const uint8_t* ahead, float* to) {
    for (uint32_t i = 0; i < size; i += Vec::width) {
        if (i % 32 == 0) __builtin_prefetch(ahead + i * sizeof(uint16_t));
        Vec::load_f16(from + i).store(to + i);
    }
}

// block: of a KV head. Its keys [dim][16] share scales along the 16, its values [16][dim] along dim.
inline void widen_i8(const uint8_t* block, uint32_t dim, bool values, const uint8_t* ahead, float* to) {
    const uint32_t size = kBlockTokens * dim;
    const auto* levels = reinterpret_cast<const int8_t*>(block) + (values ? size : 0);
    const auto* scales = reinterpret_cast<const uint16_t*>(block + size_t{2} * size) + (values ? dim : 0);
    for (uint32_t i = 0; i < size; i += 64) __builtin_prefetch(ahead + i);
    for (uint32_t group = 0; group < dim; group += kKvGroup) {
        float wide[kBlockTokens];  // the scales of 16 tokens
        for (uint32_t i = 0; i < kBlockTokens; i += Vec::width) Vec::load_f16(scales + group + i).store(wide + i);
        for (uint32_t row = 0; row < 16; ++row)  // of keys a dimension, of values a token
            for (uint32_t i = 0; i < 16; i += Vec::width) {
                const uint32_t at = values ? row * dim + group + i : (group + row) * kBlockTokens + i;
                const Vec scale = values ? Vec::set(wide[row]) : Vec::load(wide + i);
                (Vec::load_i8(levels + at) * scale).store(to + at);
            }
    }
}

// The rows of some queries in one part: row r is head r % group of query r / group.
struct Rows {
    const Attend& args;
    uint32_t part;   // its first position
    uint32_t query;  // the first that sees the part
    uint32_t count;
    float* scores;  // [count][256]
    float* panel;   // [64][dim]

    const float* q(uint32_t r) const {
        return args.q + (query + r / args.group) * args.q_stride + r % args.group * args.head_dim;
    }
    uint32_t visible(uint32_t r) const {
        const uint32_t n = args.first + query + r / args.group + 1 - part;
        return n < kPartKeys ? n : kPartKeys;
    }
    const uint8_t* block(uint32_t key) const {
        const uint32_t last = (args.first + args.queries - 1) / kBlockTokens, index = (part + key) / kBlockTokens;
        return args.kv + args.blocks[index < last ? index : last] * args.block_stride;
    }

    // Where keys or values begin in a KV head's block.
    size_t shift(bool values) const {
        return values ? size_t{kBlockTokens} * args.head_dim * (args.type == KvType::f16 ? sizeof(uint16_t) : 1) : 0;
    }

    // Calls fn(tile) with the keys or values of 64 positions: as f32 where rows are many or what lies there is int8.
    template <class F>
    void with_tile(uint32_t key, bool values, const uint8_t* const* ahead, F&& fn) const {
        if (args.type == KvType::f16 && count <= kDirectRows) {
            Tile<uint16_t> tile;
            for (uint32_t j = 0; j < kTileBlocks; ++j) {
                tile.blocks[j] = reinterpret_cast<const uint16_t*>(block(key + j * kBlockTokens) + shift(values));
                tile.ahead[j] = ahead[j];
            }
            return fn(tile);
        }
        Tile<float> wide;
        const uint32_t size = kBlockTokens * args.head_dim;
        for (uint32_t j = 0; j < kTileBlocks; ++j) {
            const uint8_t* from = block(key + j * kBlockTokens);
            float* to = panel + j * size;
            if (args.type == KvType::f16)
                widen_f16(reinterpret_cast<const uint16_t*>(from + shift(values)), size, ahead[j], to);
            else
                widen_i8(from, args.head_dim, values, ahead[j], to);
            wide.blocks[j] = to;
        }
        fn(wide);
    }
};

// How many of the keys [tile, tile + 64) are among the first `visible`.
inline uint32_t seen(uint32_t visible, uint32_t tile) {
    return visible <= tile ? 0 : visible - tile < kTileKeys ? visible - tile : kTileKeys;
}

template <class Place>
inline void run_part(const Rows& rows, Place&& place) {
    const uint32_t dim = rows.args.head_dim, most = rows.visible(rows.count - 1);
    const float scale = 0x1.715476p0f / __builtin_sqrtf(static_cast<float>(dim));  // with log2(e)
    const auto groups = [&](auto&& fn) {
        for (uint32_t r = 0; r < rows.count; r += Vec::outer_rows)
            with_constant<Vec::outer_rows>(rows.count - r < Vec::outer_rows ? rows.count - r : Vec::outer_rows,
                                           [&](auto n) { fn(r, n); });
    };
    const auto blocks_at = [&](uint32_t key, bool values, const uint8_t** out) {
        for (uint32_t j = 0; j < kTileBlocks; ++j) out[j] = rows.block(key + j * kBlockTokens) + rows.shift(values);
    };
    const uint8_t* ahead[kTileBlocks];
    for (uint32_t tile = 0; tile < most; tile += kTileKeys) {
        if (tile + kTileKeys < most)
            blocks_at(tile + kTileKeys, false, ahead);
        else
            blocks_at(0, true, ahead);
        rows.with_tile(tile, false, ahead, [&](const auto& keys) {
            groups([&](uint32_t r, auto n) {
                if (seen(rows.visible(r + n - 1), tile) == 0) return;
                const float* q[n];
                for (uint32_t i = 0; i < n; ++i) q[i] = rows.q(r + i);
                score<n>(q, keys, dim, rows.scores + r * kPartKeys + tile);
            });
        });
    }
    for (uint32_t r = 0; r < rows.count; ++r) {
        float* part = place(r);
        begin_row(part, dim);
        weigh(rows.scores + r * kPartKeys, rows.visible(r), scale, part);
    }
    for (uint32_t tile = 0; tile < most; tile += kTileKeys) {
        blocks_at(tile + kTileKeys < most ? tile + kTileKeys : tile, true, ahead);
        rows.with_tile(tile, true, ahead, [&](const auto& in) {
            groups([&](uint32_t r, auto n) {
                // What all rows see is summed for all at once, then each row's own last keys.
                const uint32_t common = seen(rows.visible(r), tile);
                const size_t stride = part_floats(dim);
                const float* weights = rows.scores + r * kPartKeys + tile;
                mix<n>(weights, in, 0, common, dim, place(r) + kPartHead, stride);
                for (uint32_t i = 1; i < n; ++i)
                    if (const uint32_t own = seen(rows.visible(r + i), tile); own > common)
                        mix<1>(weights + i * kPartKeys, in, common, own, dim, place(r + i) + kPartHead, stride);
            });
        });
    }
}

inline Rows rows_of(const Attend& args, uint32_t part) {
    const uint32_t begin = part * kPartKeys, query = begin > args.first ? begin - args.first : 0;
    return {args,         begin,
            query,        (args.queries - query) * args.group,
            args.scratch, args.scratch + size_t{kMaxQueries} * kMaxGroup * kPartKeys};
}

void attend_part(const Attend& args, uint32_t part, float* out, size_t query_stride, size_t head_stride) {
    const Rows rows = rows_of(args, part);
    const size_t size = part_floats(args.head_dim);
    float* found = rows.panel + size_t{kTileKeys} * args.head_dim;
    run_part(rows, [&](uint32_t r) { return found + r * size; });
    for (uint32_t r = 0; r < rows.count; ++r)
        std::memcpy(out + (rows.query + r / args.group) * query_stride + r % args.group * head_stride, found + r * size,
                    size * sizeof(float));
}

void join_parts(const float* parts, uint32_t count, uint32_t head_dim, float* out) {
    alignas(64) float row[kPartHead + edge::kMaxHeadDim];
    begin_row(row, head_dim);
    for (uint32_t i = 0; i < count; ++i) join(row, parts + i * part_floats(head_dim), head_dim);
    finish(row, head_dim, out);
}

void attend(const Attend& args, float* out, size_t out_stride) {
    const uint32_t dim = args.head_dim, count = args.queries * args.group;
    const size_t size = part_floats(dim);
    float* found = args.scratch + size_t{kMaxQueries} * kMaxGroup * kPartKeys + size_t{kTileKeys} * dim;
    float* joined = found + size_t{kMaxQueries} * kMaxGroup * size;
    for (uint32_t r = 0; r < count; ++r) begin_row(joined + r * size, dim);
    for (uint32_t part = 0; part <= (args.first + args.queries - 1) / kPartKeys; ++part) {
        const Rows rows = rows_of(args, part);
        run_part(rows, [&](uint32_t r) { return found + r * size; });
        for (uint32_t r = 0; r < rows.count; ++r)
            join(joined + (rows.query * args.group + r) * size, found + r * size, dim);
    }
    for (uint32_t r = 0; r < count; ++r)
        finish(joined + r * size, dim, out + r / args.group * out_stride + r % args.group * dim);
}

}  // namespace
