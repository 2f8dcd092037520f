// Which tokens constrained slots may sample: given by the submitting side, awaited by whoever samples.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "team.h"

namespace edge {

constexpr uint32_t mask_words(uint32_t vocab) { return (vocab + 31) / 32; }

// A slot has one mask at a time. The next is given only when the step of the last is collected, so the words are never
// written while they are read.
class Masks {
  public:
    // words: [slots][mask_words(vocab)], which outlive it
    Masks(uint32_t slots, uint32_t vocab, uint32_t* words) : stride_(mask_words(vocab)), words_(words), slots_(slots) {}

    // On the submitting thread: bit i of the words says that token i may be sampled; null allows all.
    void give(uint32_t slot, int64_t step, const uint32_t* allowed) {
        Slot& to = slots_[slot];
        to.all = allowed == nullptr;
        if (allowed) std::copy_n(allowed, stride_, words_ + size_t{slot} * stride_);
        to.step.store(name_of(step), std::memory_order_release);
        to.step.notify_all();
    }

    // Waits until it is given for that step, or the masks are closed; null allows all.
    const uint32_t* await(uint32_t slot, int64_t step) const {
        const Slot& from = slots_[slot];
        for (uint32_t seen; (seen = from.step.load(std::memory_order_acquire)) != name_of(step);) {
            if (seen == kClosed) return nullptr;
            wait_change(from.step, seen, kWithinStep);
        }
        return from.all ? nullptr : words_ + size_t{slot} * stride_;
    }

    // Nobody waits any more; what is sampled then does not matter.
    void close() {
        for (Slot& slot : slots_) {
            slot.step.store(kClosed, std::memory_order_release);
            slot.step.notify_all();
        }
    }

    uint32_t words() const { return stride_; }

  private:
    static constexpr uint32_t kClosed = ~uint32_t{0};

    struct Slot {
        std::atomic<uint32_t> step{0};  // of which the mask is there; 0: of none
        bool all = true;
    };

    static uint32_t name_of(int64_t step) { return static_cast<uint32_t>(step % (kClosed - 1)) + 1; }

    const uint32_t stride_;
    uint32_t* const words_;
    std::vector<Slot> slots_;
};

}  // namespace edge
