// What the machine itself can do: reading memory, dot products of bytes, passing a cache line between cores, and waking
// a thread that sleeps. limits THREADS MIB -> "GB/s GOP/s ns us us": the first two of all threads together, the last
// two median and 99th percentile. Built and run by limits.py.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

namespace {

constexpr int kRounds = 30;      // of reading
constexpr int kTurns = 200000;   // of a line between two cores
constexpr int kWakes = 200;      // of a thread that has slept for 3 ms
constexpr int kSteps = 4000000;  // of dot products

double now() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
}

// Runs fn(index) on all threads at once; seconds until the last is done.
template <class F>
double together(unsigned threads, F fn) {
    std::atomic<unsigned> there{0};
    std::vector<std::thread> all;
    double began = 0.0;
    for (unsigned i = 0; i < threads; ++i)
        all.emplace_back([&, i] {
            if (there.fetch_add(1) + 1 == threads) began = now(), there.store(threads + 1);
            while (there.load() <= threads) {
            }
            fn(i);
        });
    for (std::thread& thread : all) thread.join();
    return now() - began;
}

using Words __attribute__((vector_size(64))) = uint64_t;

// One sequential stream a thread, fetched 4 KiB ahead, as the kernels read weights.
double read_gb_s(unsigned threads, size_t mib) {
    const size_t share = (mib << 20) / threads / sizeof(Words) / 8 * 8;
    std::unique_ptr<Words, decltype(&std::free)> memory(
        static_cast<Words*>(std::aligned_alloc(64, share * threads * sizeof(Words))), &std::free);
    for (size_t i = 0; i < share * threads; ++i) memory.get()[i] = Words{} + i;
    std::atomic<uint64_t> sink{0};
    const double seconds = together(threads, [&](unsigned index) {
        const Words* from = memory.get() + index * share;
        Words sum[4] = {};
        for (int round = 0; round < kRounds; ++round)
            for (size_t i = 0; i < share; i += 8) {
                for (size_t j = 0; j < 8; ++j) __builtin_prefetch(from + i + j + 64);
                for (size_t j = 0; j < 8; ++j) sum[j % 4] ^= from[i + j];
            }
        sink += (sum[0] ^ sum[1] ^ sum[2] ^ sum[3])[0];
    });
    return static_cast<double>(share * threads * sizeof(Words)) * kRounds / seconds / 1e9;
}

// vpdpbusd on registers alone, two operations for each of its 64 products; 0 where the machine has it not.
double dot_gop_s([[maybe_unused]] unsigned threads) {
#ifdef __AVX512VNNI__
    std::atomic<int> sink{0};
    const double seconds = together(threads, [&](unsigned index) {
        __m512i sums[16];
        for (__m512i& sum : sums) sum = _mm512_setzero_si512();
        __m512i a = _mm512_set1_epi8(static_cast<char>(index + 1)), b = _mm512_set1_epi8(3);
        for (int step = 0; step < kSteps; ++step) {
            asm volatile("" : "+v"(a), "+v"(b));
            for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
        }
        for (const __m512i& sum : sums) sink += _mm512_reduce_add_epi32(sum);
    });
    return 2.0 * 64 * 16 * kSteps * threads / seconds / 1e9;
#else
    return 0.0;
#endif
}

double line_ns() {
    std::atomic<int> turn{0};
    const double seconds = together(2, [&](unsigned index) {
        for (int i = 0; i < kTurns; ++i) {
            while ((turn.load() & 1) != static_cast<int>(index)) {
            }
            turn.fetch_add(1);
        }
    });
    return seconds / (2.0 * kTurns) * 1e9;
}

// Microseconds from before the futex's system call to the other thread's first instruction behind its own; sorted.
std::vector<double> wakes_us() {
    std::atomic<int> word{0}, awake{0};
    std::vector<double> asked(kWakes), found(kWakes);
    std::thread sleeper([&] {
        for (int i = 0; i < kWakes; ++i) {
            word.wait(i);
            found[i] = now();
            awake.store(i + 1);
        }
    });
    for (int i = 0; i < kWakes; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        asked[i] = now();
        word.store(i + 1);
        word.notify_one();
        while (awake.load() != i + 1) std::this_thread::yield();
    }
    sleeper.join();
    for (int i = 0; i < kWakes; ++i) found[i] = 1e6 * (found[i] - asked[i]);
    std::sort(found.begin(), found.end());
    return found;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return 2;
    const auto threads = static_cast<unsigned>(std::atoi(arguments[1]));
    const std::vector<double> wakes = wakes_us();
    std::printf("%.2f %.1f %.1f %.1f %.1f\n", read_gb_s(threads, std::strtoul(arguments[2], nullptr, 10)),
                dot_gop_s(threads), line_ns(), wakes[kWakes / 2], wakes[kWakes * 99 / 100]);
}
