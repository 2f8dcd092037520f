// 4 float lanes by the compiler's vector extension: SSE2 on x86-64, NEON on ARM. No fused multiply-add.
#pragma once

#include <cstdint>
#include <cstring>

#include "f16.h"

namespace {

using Lanes = float __attribute__((vector_size(16)));
using IntLanes = int32_t __attribute__((vector_size(16)));

struct Vec {
    static constexpr uint32_t width = 4;
    static constexpr uint32_t tile_tokens = 2;  // 4 rows x 2 tokens = 8 of 16 registers
    static constexpr uint32_t panel_from = 6;   // tokens from which a panel of unpacked weights pays
    static constexpr uint32_t token_tile = 2;   // in products with packed weights
    static constexpr uint32_t row_tiles = 1;
    static constexpr uint32_t tiles_from = 1;
    static constexpr uint32_t outer_rows = 4;  // x outer_vectors accumulators in attention
    static constexpr uint32_t outer_vectors = 2;

    Lanes v;

    static Vec zero() { return set(0.0f); }
    static Vec set(float x) { return {Lanes{x, x, x, x}}; }
    static Vec load(const float* p) {
        Vec a;
        std::memcpy(&a.v, p, sizeof(a.v));
        return a;
    }
    static Vec load_f16(const uint16_t* p) {
        return {Lanes{edge::f16_to_f32(p[0]), edge::f16_to_f32(p[1]), edge::f16_to_f32(p[2]), edge::f16_to_f32(p[3])}};
    }
    static Vec load_i8(const int8_t* p) {
        return {Lanes{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
                      static_cast<float>(p[3])}};
    }
    void store(float* p) const { std::memcpy(p, &v, sizeof(v)); }
    void store_f16(uint16_t* p) const {
        for (int i = 0; i < 4; ++i) p[i] = edge::f32_to_f16(v[i]);
    }

    friend Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
    friend Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
    friend Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
    friend Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
    friend Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
    // b in lanes where either is NaN.
    friend Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
    friend Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
    // Lanes [0, n) of a, the others of b.
    friend Vec first_lanes(uint32_t n, Vec a, Vec b) {
        const int32_t count = static_cast<int32_t>(n < width ? n : width);
        return {IntLanes{0, 1, 2, 3} < IntLanes{count, count, count, count} ? a.v : b.v};
    }
    friend Vec swap_pairs(Vec a) { return {Lanes{a.v[1], a.v[0], a.v[3], a.v[2]}}; }
    // 2^n, from the float n + 1.5 * 2^23.
    friend Vec power_of_two(Vec shifted) {
        using Bits = uint32_t __attribute__((vector_size(16)));
        Bits bits;
        std::memcpy(&bits, &shifted.v, sizeof(bits));
        bits = (bits << 23) + 0x3f800000u;
        std::memcpy(&shifted.v, &bits, sizeof(bits));
        return shifted;
    }

    float lane0() const { return v[0]; }
    float sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
    float largest() const {
        const float even = v[0] > v[2] ? v[0] : v[2], odd = v[1] > v[3] ? v[1] : v[3];
        return even > odd ? even : odd;
    }

    // out[i] = the sum of the lanes of the i-th argument, in one order for all four.
    static void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
        out[0] = a.sum(), out[1] = b.sum(), out[2] = c.sum(), out[3] = d.sum();
    }

    // 32 weights in order, as 8 vectors.
    static void q4_1(const uint8_t* block, Vec* w) {
        uint16_t scales[2];
        std::memcpy(scales, block, 4);
        const Vec d = set(edge::f16_to_f32(scales[0])), m = set(edge::f16_to_f32(scales[1]));
        for (int i = 0; i < 4; ++i) {
            const uint8_t* q = block + 4 + 4 * i;
            w[i] = fma(integers(q[0] & 15, q[1] & 15, q[2] & 15, q[3] & 15), d, m);
            w[4 + i] = fma(integers(q[0] >> 4, q[1] >> 4, q[2] >> 4, q[3] >> 4), d, m);
        }
    }
    static void q8_0(const uint8_t* block, Vec* w) {
        uint16_t scale;
        std::memcpy(&scale, block, 2);
        const Vec d = set(edge::f16_to_f32(scale));
        for (int i = 0; i < 8; ++i) {
            int8_t q[4];
            std::memcpy(q, block + 2 + 4 * i, 4);
            w[i] = integers(q[0], q[1], q[2], q[3]) * d;
        }
    }

  private:
    static Vec integers(int a, int b, int c, int d) {
        return {Lanes{static_cast<float>(a), static_cast<float>(b), static_cast<float>(c), static_cast<float>(d)}};
    }
};

// 4 sums, or 16 bytes with 16 bits each.
struct Ints {
    int32_t sums[4];
    int16_t bytes[16];

    static Ints zero() { return {}; }
    static Ints set(int32_t x) { return {{x, x, x, x}, {}}; }
    static Ints load(const uint8_t* p) {
        Ints a;
        for (int i = 0; i < 16; ++i) a.bytes[i] = p[i];
        return a;
    }
    static Ints repeat(const int8_t* four) {
        Ints a;
        for (int i = 0; i < 16; ++i) a.bytes[i] = four[i % 4];
        return a;
    }
    Ints low_nibbles() const {
        Ints a;
        for (int i = 0; i < 16; ++i) a.bytes[i] = bytes[i] & 15;
        return a;
    }
    Ints high_nibbles() const {
        Ints a;
        for (int i = 0; i < 16; ++i) a.bytes[i] = bytes[i] >> 4;
        return a;
    }

    // Lane i of a += the sum of w[4i + j] * x[4i + j].
    friend Ints add_byte_dots(Ints a, const Ints& w, const Ints& x) {
        for (int i = 0; i < 16; ++i) a.sums[i / 4] += w.bytes[i] * x.bytes[i];
        return a;
    }
    friend Ints add_nibble_dots(const Ints& a, const Ints& w, const Ints& x) { return add_byte_dots(a, w, x); }
    Ints nibble_sums() const { return *this; }
    static Ints nibbles_after(const Ints& sums) { return sums; }
    Ints nibbles_with(const Ints&) const { return *this; }

    Ints times_256() const { return {{sums[0] * 256, sums[1] * 256, sums[2] * 256, sums[3] * 256}, {}}; }
    Ints plus(const Ints& b) const {
        return {{sums[0] + b.sums[0], sums[1] + b.sums[1], sums[2] + b.sums[2], sums[3] + b.sums[3]}, {}};
    }
    Vec floats() const {
        return {Lanes{static_cast<float>(sums[0]), static_cast<float>(sums[1]), static_cast<float>(sums[2]),
                      static_cast<float>(sums[3])}};
    }
};

}  // namespace
