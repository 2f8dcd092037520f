// 16 float lanes in a zmm register.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct Vec {
    static constexpr uint32_t width = 16;
    static constexpr uint32_t tile_tokens = 6;  // 4 rows x 6 tokens = 24 of 32 registers
    static constexpr uint32_t panel_from = 13;  // tokens from which a panel of unpacked weights pays
    static constexpr uint32_t token_tile = 12;  // x 2 registers in products with packed weights
    static constexpr uint32_t row_tiles = 2;    // x half a token tile
    static constexpr uint32_t tiles_from = 6;   // tokens; a broadcast takes a cycle, and so does a dot product of two
    static constexpr uint32_t outer_rows = 6;   // x outer_vectors accumulators in attention
    static constexpr uint32_t outer_vectors = 4;

    __m512 v;

    static Vec zero() { return {_mm512_setzero_ps()}; }
    static Vec set(float x) { return {_mm512_set1_ps(x)}; }
    static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Vec load_f16(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    static Vec load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store_f16(uint16_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }

    friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
    friend Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    // b in lanes where either is NaN.
    friend Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
    friend Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
    // Lanes [0, n) of a, the others of b.
    friend Vec first_lanes(uint32_t n, Vec a, Vec b) {
        const uint32_t mask = n >= width ? 0xffffu : (1u << n) - 1u;
        return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), b.v, a.v)};
    }
    friend Vec swap_pairs(Vec a) { return {_mm512_permute_ps(a.v, 0xb1)}; }  // lanes 1, 0, 3, 2, ...
    // 2^n, from the float n + 1.5 * 2^23.
    friend Vec power_of_two(Vec shifted) {
        const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
        return {_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)))};
    }

    float lane0() const { return _mm512_cvtss_f32(v); }
    float sum() const {
        float out[4];
        sum4(*this, *this, *this, *this, out);
        return out[0];
    }
    float largest() const { return _mm512_reduce_max_ps(v); }

    // out[i] = the sum of the lanes of the i-th argument, in one order for all four.
    static void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
        const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }

    // 32 weights in order, as 2 vectors.
    static void q4_1(const uint8_t* block, Vec* w) {
        int32_t scales;
        std::memcpy(&scales, block, 4);
        const __m512 both = _mm512_cvtph_ps(_mm256_set1_epi32(scales));  // d, m, d, m ...
        const __m512 levels = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512 table = _mm512_fmadd_ps(levels, _mm512_moveldup_ps(both), _mm512_movehdup_ps(both));
        const __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 4)));
        w[0] = {_mm512_permutexvar_ps(q, table)};  // takes the low 4 bits of each index
        w[1] = {_mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table)};
    }
    static void q8_0(const uint8_t* block, Vec* w) {
        uint16_t scale;
        std::memcpy(&scale, block, 2);
        const __m512 d = _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(scale)));
        for (int i = 0; i < 2; ++i) {
            const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + 16 * i));
            w[i] = {_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), d)};
        }
    }
};

// 16 sums of 32 bits, or 64 bytes.
struct Ints {
    __m512i v;

    static Ints zero() { return {_mm512_setzero_si512()}; }
    static Ints set(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static Ints load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
    static Ints repeat(const int8_t* four) {
        int32_t bits;
        std::memcpy(&bits, four, 4);
        return set(bits);
    }
    Ints low_nibbles() const { return {_mm512_and_si512(v, _mm512_set1_epi8(15))}; }
    Ints high_nibbles() const { return {_mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15))}; }

    // Lane i of a += the sum of w[4i + j] * x[4i + j], w unsigned, x signed, for nibbles at most 8 times from zero.
    friend Ints add_nibble_dots(Ints a, Ints w, Ints x) { return {_mm512_dpbusd_epi32(a.v, w.v, x.v)}; }
    friend Ints add_byte_dots(Ints a, Ints w, Ints x) { return {_mm512_dpbusd_epi32(a.v, w.v, x.v)}; }
    // Sums of 32 bits out of nibble dots.
    Ints nibble_sums() const { return *this; }
    // Nibble dots to go on with behind sums of 32 bits, and the sums of both.
    static Ints nibbles_after(Ints sums) { return sums; }
    Ints nibbles_with(Ints) const { return *this; }

    Ints times_256() const { return {_mm512_slli_epi32(v, 8)}; }
    Ints plus(Ints b) const { return {_mm512_add_epi32(v, b.v)}; }
    Vec floats() const { return {_mm512_cvtepi32_ps(v)}; }
};

// 32 values to levels; returns their scale. The rule stands at edge::Quantised.
inline float quantise_block(const float* x, int8_t* levels, int8_t* low, int32_t& sum) {
    const float top = low ? 32639.0f : 127.0f;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    // As integers, so that NaN is above infinity and every number.
    const __m512i most_bits = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                                               _mm512_and_si512(_mm512_castps_si512(x1), magnitude));
    const int bits = _mm512_reduce_max_epi32(most_bits);
    float most, inverse = 0.0f;
    std::memcpy(&most, &bits, 4);
    const bool usable = most >= 0x1p-100f && most <= 0x1.fffffep127f;
    if (usable) inverse = top / most;
    const __m512 factor = _mm512_set1_ps(inverse);
    const __mmask16 keep = usable ? 0xffff : 0;
    const __m512i q0 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x0, factor));
    const __m512i q1 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x1, factor));
    const auto put = [](int8_t* to, __m512i first, __m512i second) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm512_cvtepi32_epi8(second));
    };
    if (low) {
        const auto high = [](__m512i q) { return _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8); };
        put(levels, high(q0), high(q1));
        put(low, q0, q1);
    } else {
        put(levels, q0, q1);
    }
    sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    return usable ? most / top : most < 0x1p-100f ? 0.0f : __builtin_nanf("");
}

}  // namespace
