#include "team.h"

#include <thread>

#ifdef EDGE_X86
#include <immintrin.h>
#endif

namespace edge {
namespace {

constexpr int kSpins = 200;  // some 10 us: most waits within a step end earlier
constexpr int kSpinsBetweenYields = 100;

bool changes(const std::atomic<uint32_t>& word, uint32_t old, int spins) {
    for (int i = 0; i < spins; ++i) {
        if (word.load(std::memory_order_acquire) != old) return true;
        relax();
    }
    return false;
}

}  // namespace

void relax() {
#ifdef EDGE_X86
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// On a virtual machine a core whose thread sleeps goes back to the host, which returns it late (75 us to 4 ms): the
// others, waiting for that one, sleep too, and the team never comes out of it. Who yields keeps the core, and takes
// nothing from a thread that has work.
void wait_change(const std::atomic<uint32_t>& word, uint32_t old, std::chrono::microseconds patience) {
    if (changes(word, old, kSpins)) return;
    const auto end = std::chrono::steady_clock::now() + patience;
    do {
        std::this_thread::yield();
        if (changes(word, old, kSpinsBetweenYields)) return;
    } while (std::chrono::steady_clock::now() < end);
    word.wait(old, std::memory_order_acquire);
}

void Team::barrier(std::chrono::microseconds patience) {
    const uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < members_) {
        wait_change(epoch_, epoch, patience);
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    epoch_.fetch_add(1);  // sequentially consistent: the store must be seen before notify looks for sleepers
    epoch_.notify_all();
}

}  // namespace edge
