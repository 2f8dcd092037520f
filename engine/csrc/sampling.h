// How a sequence samples, and what is told of a sampled token; the semantics are those of engine/step.py.
#pragma once

#include <array>
#include <cstdint>

namespace edge {

constexpr uint32_t kMaxStopIds = 64;
constexpr uint32_t kMaxBiases = 300;
constexpr uint32_t kMaxTop = 20;  // log-probabilities told of beside the sampled token's

struct Sampling {
    double temperature = 1.0;  // 0: argmax
    double top_p = 1.0;        // (0, 1]
    double min_p = 0.0;        // [0, 1]
    uint32_t top_k = 0;        // 0: all
    float repetition = 1.0f;   // > 0
    float frequency = 0.0f;
    float presence = 0.0f;
    uint64_t seed = 0;
    uint32_t first = 0;  // position of the first sampled token
    uint32_t min_tokens = 0;
    bool constrained = false;  // every sample waits for a mask
    bool logprobs = false;
    uint32_t top_logprobs = 0;
    uint32_t stop_count = 0;
    uint32_t bias_count = 0;
    std::array<uint32_t, kMaxStopIds> stop_ids{};
    std::array<uint32_t, kMaxBiases> bias_ids{};
    std::array<float, kMaxBiases> biases{};

    bool stops(uint32_t token) const {
        for (uint32_t i = 0; i < stop_count; ++i)
            if (stop_ids[i] == token) return true;
        return false;
    }
    // The tokens before matter.
    bool penalises() const { return repetition != 1.0f || frequency != 0.0f || presence != 0.0f; }
    // Stop ids may not be sampled at this position yet.
    bool holds(uint32_t position) const { return stop_count != 0 && position < uint64_t{first} + min_tokens; }
};

struct Logprob {
    uint32_t id;
    double value;
};

struct Logprobs {
    double sampled;  // of the token that was sampled
    uint32_t count;
    std::array<Logprob, kMaxTop> top;  // the `count` likeliest
};

}  // namespace edge
