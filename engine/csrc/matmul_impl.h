// Products of activations with weight rows, for the Vec of the including file.
//
// Each (row, token) has one vector accumulator, fed in file order of K, and one order of summing its lanes: so every
// way of tiling gives the same bits.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "pack.h"

namespace {

using edge::DType;
using edge::kBlockWeights;
using edge::Matrix;

constexpr uint32_t kRows = 4;  // weight rows of a register tile
// Four short streams side by side are nothing that the hardware prefetches: quads of rows to fetch ahead by hand.
constexpr uint32_t kAhead = 2;
constexpr uint32_t kVectors = kBlockWeights / Vec::width;

template <DType type>
inline void load_block(const uint8_t* block, Vec* w) {
    if constexpr (type == DType::q4_1) {
        Vec::q4_1(block, w);
    } else if constexpr (type == DType::q8_0) {
        Vec::q8_0(block, w);
    } else {
        for (uint32_t i = 0; i < kVectors; ++i) {
            if constexpr (type == DType::f16)
                w[i] = Vec::load_f16(reinterpret_cast<const uint16_t*>(block) + i * Vec::width);
            else
                w[i] = Vec::load(reinterpret_cast<const float*>(block) + i * Vec::width);
        }
    }
}

// Stores the sums of 4 rows at y[0..valid).
inline void store_rows(const Vec* acc, float* y, uint32_t valid) {
    if (valid == kRows) {
        Vec::sum4(acc[0], acc[1], acc[2], acc[3], y);
        return;
    }
    float sums[kRows];
    Vec::sum4(acc[0], acc[1], acc[2], acc[3], sums);
    for (uint32_t r = 0; r < valid; ++r) y[r] = sums[r];
}

// 4 weight rows x `tokens` activations straight from the file's blocks. Rows past `valid` repeat the last one.
template <DType type, uint32_t tokens>
inline void direct(const Matrix& weights, uint32_t row, uint32_t valid, const float* x, size_t x_stride, float* y,
                   size_t y_stride) {
    const size_t stride = edge::row_bytes(type, weights.cols);
    const uint8_t* block[kRows];
    Vec acc[tokens][kRows];
    for (uint32_t r = 0; r < kRows; ++r) {
        block[r] = weights.data + stride * (row + (r < valid ? r : valid - 1));
        for (uint32_t t = 0; t < tokens; ++t) acc[t][r] = Vec::zero();
    }
    const uint8_t* ahead = block[0] + kAhead * kRows * stride;
    for (uint32_t k = 0; k < weights.cols; k += kBlockWeights) {
        for (size_t i = 0; i < kRows * edge::block_bytes(type); i += 64) __builtin_prefetch(ahead + i);
        ahead += kRows * edge::block_bytes(type);
        for (uint32_t r = 0; r < kRows; ++r) {
            Vec w[kVectors];
            load_block<type>(block[r], w);
            block[r] += edge::block_bytes(type);
            for (uint32_t t = 0; t < tokens; ++t)
                for (uint32_t i = 0; i < kVectors; ++i)
                    acc[t][r] = fma(w[i], Vec::load(x + t * x_stride + k + i * Vec::width), acc[t][r]);
        }
    }
    for (uint32_t t = 0; t < tokens; ++t) store_rows(acc[t], y + t * y_stride, valid);
}

// Calls fn with `count` in [1, most] as a constant.
template <uint32_t most, class F>
inline void with_constant(uint32_t count, F&& fn) {
    if constexpr (most > 0) {
        if (count == most)
            fn(std::integral_constant<uint32_t, most>{});
        else
            with_constant<most - 1>(count, fn);
    }
}

// Writes rows [row, row + count) as quads of rows, a quad as [cols / width][4][width]; a short quad repeats its last
// row.
template <DType type>
inline void fill_panel(const Matrix& weights, uint32_t row, uint32_t count, float* panel) {
    const size_t stride = edge::row_bytes(type, weights.cols);
    for (uint32_t r = 0; r < (count + kRows - 1) / kRows * kRows; ++r) {
        const uint8_t* block = weights.data + stride * (row + (r < count ? r : count - 1));
        float* out = panel + size_t{r / kRows} * kRows * weights.cols + r % kRows * Vec::width;
        for (uint32_t k = 0; k < weights.cols; k += kBlockWeights, block += edge::block_bytes(type)) {
            Vec w[kVectors];
            load_block<type>(block, w);
            for (uint32_t i = 0; i < kVectors; ++i, out += kRows * Vec::width) w[i].store(out);
        }
    }
}

// One quad of a panel x `tokens` activations.
template <uint32_t tokens>
inline void tile(const float* quad, uint32_t cols, const float* x, size_t x_stride, float* y, size_t y_stride,
                 uint32_t valid) {
    Vec acc[tokens][kRows];
    for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t r = 0; r < kRows; ++r) acc[t][r] = Vec::zero();
    for (uint32_t k = 0; k < cols; k += Vec::width, quad += kRows * Vec::width) {
        Vec w[kRows];
        for (uint32_t r = 0; r < kRows; ++r) w[r] = Vec::load(quad + r * Vec::width);
        for (uint32_t t = 0; t < tokens; ++t) {
            const Vec in = Vec::load(x + t * x_stride + k);
            for (uint32_t r = 0; r < kRows; ++r) acc[t][r] = fma(w[r], in, acc[t][r]);
        }
    }
    for (uint32_t t = 0; t < tokens; ++t) store_rows(acc[t], y + t * y_stride, valid);
}

template <uint32_t tokens>
inline void panel_tokens(const float* panel, uint32_t count, uint32_t cols, const float* x, size_t x_stride, float* y,
                         size_t y_stride) {
    for (uint32_t r = 0; r < count; r += kRows)
        tile<tokens>(panel + size_t{r} * cols, cols, x, x_stride, y + r, y_stride,
                     count - r < kRows ? count - r : kRows);
}

template <DType type>
void matmul_of(const Matrix& weights, uint32_t row0, uint32_t row1, const float* x, size_t x_stride, uint32_t tokens,
               float* y, size_t y_stride, float* scratch) {
    // Few tokens: the weights are unpacked again for each handful. Many: once, into a panel.
    const bool few = tokens < Vec::panel_from;
    const uint32_t step = few ? kRows : edge::kPanelRows;
    for (uint32_t r = row0; r < row1; r += step) {
        const uint32_t count = row1 - r < step ? row1 - r : step;
        if (!few) fill_panel<type>(weights, r, count, scratch);
        for (uint32_t t = 0; t < tokens; t += Vec::tile_tokens) {
            const uint32_t some = tokens - t < Vec::tile_tokens ? tokens - t : Vec::tile_tokens;
            const float* in = x + t * x_stride;
            float* out = y + t * y_stride + (r - row0);
            with_constant<Vec::tile_tokens>(some, [&](auto n) {
                if (few)
                    direct<type, n>(weights, r, count, in, x_stride, out, y_stride);
                else
                    panel_tokens<n>(scratch, count, weights.cols, in, x_stride, out, y_stride);
            });
        }
    }
}

void matmul(const Matrix& weights, uint32_t row0, uint32_t row1, const float* x, size_t x_stride, uint32_t tokens,
            float* y, size_t y_stride, float* scratch) {
    switch (weights.dtype) {
        case DType::f32: return matmul_of<DType::f32>(weights, row0, row1, x, x_stride, tokens, y, y_stride, scratch);
        case DType::f16: return matmul_of<DType::f16>(weights, row0, row1, x, x_stride, tokens, y, y_stride, scratch);
        case DType::q4_1: return matmul_of<DType::q4_1>(weights, row0, row1, x, x_stride, tokens, y, y_stride, scratch);
        case DType::q8_0: return matmul_of<DType::q8_0>(weights, row0, row1, x, x_stride, tokens, y, y_stride, scratch);
        default: __builtin_unreachable();  // packed types are multiplied by the functions of packed_impl.h
    }
}

template <DType type>
void dequantise_row(const Matrix& weights, uint32_t row, float* out) {
    const uint8_t* block = weights.data + edge::row_bytes(type, weights.cols) * row;
    for (uint32_t k = 0; k < weights.cols; k += kBlockWeights, block += edge::block_bytes(type)) {
        Vec w[kVectors];
        load_block<type>(block, w);
        for (uint32_t i = 0; i < kVectors; ++i) w[i].store(out + k + i * Vec::width);
    }
}

template <DType type>
void dequantise_packed(const Matrix& weights, uint32_t row, float* out) {
    for (uint32_t k = 0; k < weights.cols; k += kBlockWeights) {
        uint8_t block[edge::block_bytes(type)];
        edge::unpack_block(weights, row, k / kBlockWeights, block);
        Vec w[kVectors];
        load_block<type>(block, w);
        for (uint32_t i = 0; i < kVectors; ++i) w[i].store(out + k + i * Vec::width);
    }
}

void dequantise(const Matrix& weights, uint32_t row, float* out) {
    switch (weights.dtype) {
        case DType::f32: return dequantise_row<DType::f32>(weights, row, out);
        case DType::f16: return dequantise_row<DType::f16>(weights, row, out);
        case DType::q4_1: return dequantise_row<DType::q4_1>(weights, row, out);
        case DType::q8_0: return dequantise_row<DType::q8_0>(weights, row, out);
        case DType::q4_1x16: return dequantise_packed<DType::q4_1>(weights, row, out);
        case DType::q8_0x16: return dequantise_packed<DType::q8_0>(weights, row, out);
    }
}

}  // namespace
