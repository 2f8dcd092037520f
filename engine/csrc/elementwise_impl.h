// Row-wise functions, for the Vec of the including file.
#pragma once

#include <cstring>

#include "kernels.h"

namespace {

// exp to 1 ulp or so by reduction to |r| <= ln(2)/2 (Cody and Waite) and a polynomial of degree 6. Below -87 it stays
// at exp(-87), above 88 at exp(88); NaN stays NaN.
inline Vec exp(Vec x) {
    x = min(Vec::set(88.0f), max(Vec::set(-87.0f), x));
    const Vec magic = Vec::set(0x1.8p23f);
    const Vec shifted = fma(x, Vec::set(0x1.715476p0f), magic);
    const Vec n = shifted - magic;
    Vec r = fma(n, Vec::set(-0x1.62e4p-1f), x);
    r = fma(n, Vec::set(-0x1.7f7d1cp-20f), r);
    Vec p = Vec::set(1.0f / 720);
    p = fma(p, r, Vec::set(1.0f / 120));
    p = fma(p, r, Vec::set(1.0f / 24));
    p = fma(p, r, Vec::set(1.0f / 6));
    p = fma(p, r, Vec::set(0.5f));
    p = fma(p, r, Vec::set(1.0f));
    p = fma(p, r, Vec::set(1.0f));
    return p * power_of_two(shifted);
}

void rms_norm(const float* x, const float* weight, uint32_t n, float eps, float* out) {
    Vec squares = Vec::zero();
    for (uint32_t i = 0; i < n; i += Vec::width) {
        const Vec v = Vec::load(x + i);
        squares = fma(v, v, squares);
    }
    const Vec scale = Vec::set(1.0f / __builtin_sqrtf(squares.sum() / static_cast<float>(n) + eps));
    for (uint32_t i = 0; i < n; i += Vec::width) (Vec::load(x + i) * scale * Vec::load(weight + i)).store(out + i);
}

void silu_mul(float* gate, const float* up, uint32_t n) {
    const Vec one = Vec::set(1.0f);
    for (uint32_t i = 0; i < n; i += Vec::width) {
        const Vec g = Vec::load(gate + i);
        (g / (one + exp(Vec::zero() - g)) * Vec::load(up + i)).store(gate + i);
    }
}

void rotate(float* x, const float* cosines, const float* sines, uint32_t n) {
    for (uint32_t i = 0; i < n; i += Vec::width) {
        const Vec v = Vec::load(x + i);
        (v * Vec::load(cosines + i) + swap_pairs(v) * Vec::load(sines + i)).store(x + i);
    }
}

void to_f16(const float* x, uint16_t* out, uint32_t n) {
    for (uint32_t i = 0; i < n; i += Vec::width) Vec::load(x + i).store_f16(out + i);
}

void to_i8(const float* x, int8_t* levels, uint16_t* scale) {
    float most = 0.0f, odd = 0.0f;  // 0 * x stays 0 unless x is infinite or NaN
    for (uint32_t i = 0; i < edge::kKvGroup; ++i) {
        const float size = __builtin_fabsf(x[i]);
        most = size > most ? size : most;
        odd += x[i] * 0.0f;
    }
    alignas(64) uint16_t halves[Vec::width];
    Vec::set(odd == 0.0f ? most / 127.0f : __builtin_nanf("")).store_f16(halves);
    const float step = Vec::load_f16(halves).lane0();
    *scale = halves[0];
    for (uint32_t i = 0; i < edge::kKvGroup; ++i) {
        const float level = step > 0.0f ? __builtin_rintf(x[i] / step) : 0.0f;
        levels[i] = static_cast<int8_t>(level > 127.0f ? 127.0f : level < -127.0f ? -127.0f : level);
    }
}

edge::Peak peak(const float* x, uint32_t n) {
    const uint32_t whole = n / Vec::width * Vec::width;
    Vec most = Vec::set(-__builtin_inff());
    Vec products = Vec::zero();  // 0 * x stays 0 unless x is infinite or NaN
    for (uint32_t i = 0; i < whole; i += Vec::width) {
        const Vec v = Vec::load(x + i);
        most = max(most, v);
        products = fma(v, Vec::zero(), products);
    }
    float largest = most.largest(), odd = products.sum();
    for (uint32_t i = whole; i < n; ++i) {
        largest = x[i] > largest ? x[i] : largest;
        odd += x[i] * 0.0f;
    }
    if (!(odd == 0.0f)) return {0, 0.0f, false};
    uint32_t id = 0;
    while (x[id] != largest) ++id;
    return {id, largest, true};
}

// exp of a double <= 0 to about 1 ulp, written so that the compiler can vectorise the loop around it. 0 below -708.
inline double exp_double(double x) {
    const double bounded = x < -708.0 ? -708.0 : x;
    const double shifted = bounded * 0x1.71547652b82fep0 + 0x1.8p52;
    const double n = shifted - 0x1.8p52;
    const double r = (bounded - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    std::memcpy(&bits, &shifted, 8);
    bits = (bits << 52) + 0x3ff0000000000000u;
    double power;
    std::memcpy(&power, &bits, 8);
    return x < -708.0 ? 0.0 : p * power;
}

double softmax_weights(const float* x, uint32_t n, float peak, double temperature, double* out) {
    constexpr uint32_t lanes = 8;
    double sums[lanes] = {};
    const double most = peak;
    uint32_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (uint32_t j = 0; j < lanes; ++j) {
            out[i + j] = exp_double((static_cast<double>(x[i + j]) - most) / temperature);
            sums[j] += out[i + j];
        }
    double total = 0.0;
    for (const double sum : sums) total += sum;
    for (; i < n; ++i) total += out[i] = exp_double((static_cast<double>(x[i]) - most) / temperature);
    return total;
}

}  // namespace
