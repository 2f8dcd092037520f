// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
#pragma once

#include <array>
#include <cstdint>

namespace edge {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t left = uint64_t{0xD2511F53} * counter[0];
        const uint64_t right = uint64_t{0xCD9E8D57} * counter[2];
        counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
                   static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
        key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    }
    return counter;
}

// In [0, 1), a multiple of 2^-24, for the token that will stand at `position`.
inline double uniform(uint64_t seed, uint32_t position) {
    const auto words =
        philox4x32({position, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    return static_cast<double>(words[0] >> 8) * 0x1p-24;
}

}  // namespace edge
