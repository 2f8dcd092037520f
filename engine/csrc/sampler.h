// Logits to a token, by the order that engine/step.py documents.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels.h"

namespace edge {

constexpr uint32_t kMaxStopIds = 64;

struct Sampling {
    double temperature = 1.0;  // 0: argmax
    double top_p = 1.0;        // (0, 1]
    uint32_t top_k = 0;        // 0: all
    uint64_t seed = 0;
    uint32_t stop_count = 0;
    std::array<uint32_t, kMaxStopIds> stop_ids{};

    bool stops(uint32_t token) const;
};

// One per thread: it owns the working memory for a vocabulary.
class Sampler {
  public:
    explicit Sampler(uint32_t vocab);

    // The token for `position` out of logits [vocab]; nothing if they are not all finite.
    std::optional<uint32_t> operator()(const Kernels& kernels, const float* logits, const Sampling& sampling,
                                       uint32_t position);

  private:
    void collect(const float* logits, double least);
    uint32_t ranked(size_t rank);
    std::optional<uint32_t> draw(const Sampling& sampling, double total, double chance, bool complete);

    std::vector<double> weights_;  // [vocab]
    const float* logits_ = nullptr;
    // Ids of the largest logits: a heap, and behind it, last first, the `ranked_` that were taken from it.
    std::vector<uint32_t> order_;
    size_t ranked_ = 0;
};

}  // namespace edge
