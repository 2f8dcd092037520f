// 8 float lanes in a ymm register.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct Vec {
    static constexpr uint32_t width = 8;
    static constexpr uint32_t tile_tokens = 3;  // 4 rows x 3 tokens = 12 of 16 registers
    static constexpr uint32_t panel_from = 18;  // tokens from which a panel of unpacked weights pays
    static constexpr uint32_t token_tile = 2;   // x 4 registers in products with packed weights
    static constexpr uint32_t row_tiles = 1;
    static constexpr uint32_t tiles_from = 1;
    static constexpr uint32_t outer_rows = 4;  // x outer_vectors accumulators in attention
    static constexpr uint32_t outer_vectors = 2;

    __m256 v;

    static Vec zero() { return {_mm256_setzero_ps()}; }
    static Vec set(float x) { return {_mm256_set1_ps(x)}; }
    static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Vec load_f16(const uint16_t* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    static Vec load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    void store_f16(uint16_t* p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                         _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }

    friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
    friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
    friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
    friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
    friend Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
    // b in lanes where either is NaN.
    friend Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
    friend Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
    // Lanes [0, n) of a, the others of b.
    friend Vec first_lanes(uint32_t n, Vec a, Vec b) {
        const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
        const __m256i count = _mm256_set1_epi32(static_cast<int>(n < width ? n : width));
        return {_mm256_blendv_ps(b.v, a.v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)))};
    }
    friend Vec swap_pairs(Vec a) { return {_mm256_permute_ps(a.v, 0xb1)}; }  // lanes 1, 0, 3, 2, ...
    // 2^n, from the float n + 1.5 * 2^23.
    friend Vec power_of_two(Vec shifted) {
        const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
        return {_mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)))};
    }

    float lane0() const { return _mm256_cvtss_f32(v); }
    float sum() const {
        float out[4];
        sum4(*this, *this, *this, *this, out);
        return out[0];
    }
    float largest() const {
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    }

    // out[i] = the sum of the lanes of the i-th argument, in one order for all four.
    static void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
        const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a.v, b.v), _mm256_unpackhi_ps(a.v, b.v));
        const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c.v, d.v), _mm256_unpackhi_ps(c.v, d.v));
        const __m256d low = _mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        const __m256d high = _mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        const __m256 all = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }

    // 32 weights in order, as 4 vectors.
    static void q4_1(const uint8_t* block, Vec* w) {
        int32_t scales;
        std::memcpy(&scales, block, 4);
        const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(scales));
        const __m256 d = _mm256_broadcastss_ps(both);
        const __m256 m = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
        const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 4));
        const __m128i mask = _mm_set1_epi8(15);
        const __m128i nibbles[2] = {_mm_and_si128(q, mask), _mm_and_si128(_mm_srli_epi16(q, 4), mask)};
        for (int i = 0; i < 4; ++i) {
            const __m128i half = i % 2 ? _mm_srli_si128(nibbles[i / 2], 8) : nibbles[i / 2];
            w[i] = {_mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(half)), d, m)};
        }
    }
    static void q8_0(const uint8_t* block, Vec* w) {
        uint16_t scale;
        std::memcpy(&scale, block, 2);
        const __m256 d = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(scale)));
        for (int i = 0; i < 4; ++i) {
            const __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 2 + 8 * i));
            w[i] = {_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), d)};
        }
    }
};

// 8 sums of 32 bits, 16 of 16 bits, or 32 bytes.
struct Ints {
    __m256i v;

    static Ints zero() { return {_mm256_setzero_si256()}; }
    static Ints set(int32_t x) { return {_mm256_set1_epi32(x)}; }
    static Ints load(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
    static Ints repeat(const int8_t* four) {
        int32_t bits;
        std::memcpy(&bits, four, 4);
        return set(bits);
    }
    Ints low_nibbles() const { return {_mm256_and_si256(v, _mm256_set1_epi8(15))}; }
    Ints high_nibbles() const { return {_mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15))}; }

    // Sums of w[2i] * x[2i] + w[2i + 1] * x[2i + 1], w unsigned, x signed. Of nibbles 8 fit into 16 bits
    // (8 * 2 * 15 * 128); a byte is two halves of 7 and 1 bits, so that none saturates.
    friend Ints add_nibble_dots(Ints a, Ints w, Ints x) {
        return {_mm256_add_epi16(a.v, _mm256_maddubs_epi16(w.v, x.v))};
    }
    friend Ints add_byte_dots(Ints a, Ints w, Ints x) {
        const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(w.v, _mm256_set1_epi8(127)), x.v);
        const __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(w.v, _mm256_set1_epi8(-128)), x.v);
        return {_mm256_add_epi32(a.v, _mm256_add_epi32(Ints{low}.pairs(), Ints{high}.pairs()))};
    }
    // Sums of 32 bits out of nibble dots.
    Ints nibble_sums() const { return {pairs()}; }
    // Nibble dots to go on with behind sums of 32 bits, and the sums of both.
    static Ints nibbles_after(Ints) { return zero(); }
    Ints nibbles_with(Ints sums) const { return nibble_sums().plus(sums); }

    Ints times_256() const { return {_mm256_slli_epi32(v, 8)}; }
    Ints plus(Ints b) const { return {_mm256_add_epi32(v, b.v)}; }
    Vec floats() const { return {_mm256_cvtepi32_ps(v)}; }

  private:
    __m256i pairs() const { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
};

}  // namespace
