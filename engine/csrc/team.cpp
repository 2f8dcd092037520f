#include "team.h"

#ifdef EDGE_X86
#include <immintrin.h>
#endif

namespace edge {
namespace {

constexpr int kSpins = 1000;

}  // namespace

void relax() {
#ifdef EDGE_X86
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void wait_change(const std::atomic<uint32_t>& word, uint32_t old) {
    for (int i = 0; i < kSpins; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
    }
    word.wait(old, std::memory_order_acquire);
}

void Team::barrier() {
    const uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < members_) {
        wait_change(epoch_, epoch);
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    epoch_.fetch_add(1);  // sequentially consistent: the store must be seen before notify looks for sleepers
    epoch_.notify_all();
}

}  // namespace edge
