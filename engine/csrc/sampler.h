// Logits to a token, by the order that engine/step.py documents.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels.h"
#include "sampling.h"
#include "seen.h"

namespace edge {

// One per thread, over working memory that it does not own.
class Sampler {
  public:
    struct Memory {
        double* weights;  // [vocab]
        uint32_t* order;  // [vocab]
        float* adjusted;  // [vocab]: a copy of the logits, where they must change
    };

    Sampler(uint32_t vocab, const Memory& memory) : vocab_(vocab), memory_(memory) {}

    // The token for `position` out of logits [vocab]; nothing if they are not all finite. `seen` is read where the
    // sampling penalises. `allowed`: a bit a token, or null for all; one token at least.
    std::optional<uint32_t> operator()(const Kernels& kernels, const float* logits, const Sampling& sampling,
                                       const Seen& seen, uint32_t position, const uint32_t* allowed = nullptr);
    // Of the model's own distribution: what penalties, bias and temperature made of it does not matter.
    Logprobs logprobs(const Kernels& kernels, const float* logits, uint32_t token, uint32_t top);

  private:
    void adjust(const Sampling& sampling, const Seen& seen, uint32_t position, const uint32_t* allowed);
    template <class Keep>
    void collect(const float* logits, Keep&& keep);
    uint32_t ranked(size_t rank);
    std::optional<uint32_t> draw(const Sampling& sampling, double total, double chance, bool complete);

    const uint32_t vocab_;
    const Memory memory_;
    const float* logits_ = nullptr;
    // memory_.order: ids of the largest logits, a heap, and behind it, last first, the `ranked_` that were taken from
    // it.
    size_t count_ = 0;
    size_t ranked_ = 0;
};

}  // namespace edge
