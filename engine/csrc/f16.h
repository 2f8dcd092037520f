// IEEE half precision by bit operations, for machines without a conversion instruction. Both directions give what the
// instructions give: exact, and round to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace edge {

static inline float f16_to_f32(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    uint32_t bits;
    if (exponent == 0) {
        const float value = static_cast<float>(mantissa) * 0x1p-24f;
        std::memcpy(&bits, &value, 4);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u);
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t f32_to_f16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 leaves the rounded mantissa in the low bits
        float shifted;
        std::memcpy(&shifted, &magnitude, 4);
        shifted += 0.5f;
        uint32_t low;
        std::memcpy(&low, &shifted, 4);
        return static_cast<uint16_t>(sign | (low - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

}  // namespace edge
