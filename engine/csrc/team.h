// Threads that walk through the same program together, dividing each phase among them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace edge {

void relax();  // a spin loop's pause

// How long one who waits stays awake, giving way to whoever has work.
constexpr std::chrono::microseconds kWithinStep{20'000};
constexpr std::chrono::microseconds kBetweenSteps{50};

// Returns when the word is no longer `old`. Sleeps in the kernel once its patience is at an end.
void wait_change(const std::atomic<uint32_t>& word, uint32_t old, std::chrono::microseconds patience);

// Of [0, total), what belongs to `member`.
struct Range {
    uint32_t from, to;
};

inline Range share(uint32_t total, uint32_t member, uint32_t members) {
    return {static_cast<uint32_t>(uint64_t{total} * member / members),
            static_cast<uint32_t>(uint64_t{total} * (member + 1) / members)};
}

class Team {
  public:
    explicit Team(uint32_t members) : members_(members) {}
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    uint32_t members() const { return members_; }

    // Everything before it on any member happens before everything after it on all.
    void barrier(std::chrono::microseconds patience = kWithinStep);

    // Calls fn(i) once for each i < count, on whichever member is free; ends in a barrier. Every member must call it
    // with the same count.
    template <class F>
    void each(uint32_t count, F&& fn) {
        for (uint32_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) fn(i);
        barrier();
    }

  private:
    const uint32_t members_;
    alignas(64) std::atomic<uint32_t> next_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> epoch_{0};
};

}  // namespace edge
