// Activations to levels of 8 or 16 bits, for instruction sets without their own way.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr uint32_t kValues = 32;

// 32 values to levels; returns their scale. The rule stands at edge::Quantised.
inline float quantise_block(const float* x, int8_t* levels, int8_t* low, int32_t& sum) {
    const float top = low ? 32639.0f : 127.0f;
    uint32_t bits[kValues], most_bits = 0;
    std::memcpy(bits, x, sizeof(bits));
    for (const uint32_t b : bits) most_bits = (b & 0x7fffffffu) > most_bits ? b & 0x7fffffffu : most_bits;
    float most;
    std::memcpy(&most, &most_bits, 4);
    sum = 0;
    if (!(most >= 0x1p-100f && most <= 0x1.fffffep127f)) {
        std::memset(levels, 0, kValues);
        if (low) std::memset(low, 0, kValues);
        return most < 0x1p-100f ? 0.0f : __builtin_nanf("");
    }
    const float inverse = top / most;
    int32_t rounded[kValues];
    for (uint32_t i = 0; i < kValues; ++i) {
        const float shifted = x[i] * inverse + 0x1.8p23f;  // its low bits are the rounded product
        std::memcpy(rounded + i, &shifted, 4);
        rounded[i] -= 0x4b400000;
        sum += rounded[i];
    }
    for (uint32_t i = 0; i < kValues; ++i) levels[i] = static_cast<int8_t>(low ? (rounded[i] + 128) >> 8 : rounded[i]);
    if (low)
        for (uint32_t i = 0; i < kValues; ++i) low[i] = static_cast<int8_t>(rounded[i]);
    return most / top;
}

}  // namespace
