#include <time.h>

#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "team.h"

namespace edge {
namespace {

TEST(team_does_every_piece_once_and_sees_the_phase_before) {
    for (const uint32_t members : {1u, 2u, 4u}) {
        Team team(members);
        std::vector<uint32_t> values(97), next(97);  // plain memory: only the barrier orders the phases
        const auto program = [&] {
            for (uint32_t phase = 0; phase < 300; ++phase) {
                team.each(97, [&](uint32_t i) { next[i] = values[(i + 1) % 97] + 1; });
                team.each(97, [&](uint32_t i) { values[i] = next[i]; });
                team.each(0, [&](uint32_t) { std::abort(); });
            }
        };
        std::vector<std::thread> threads;
        for (uint32_t i = 1; i < members; ++i) threads.emplace_back(program);
        program();
        for (std::thread& thread : threads) thread.join();
        for (const uint32_t value : values) CHECK(value == 300);
    }
}

TEST(team_wakes_members_that_slept) {
    constexpr std::chrono::microseconds none{0};
    Team team(2);
    uint32_t said = 0;
    std::thread other([&] {
        for (uint32_t i = 1; i <= 20; ++i) {
            team.barrier(none);  // long before the leader comes
            CHECK(said == i);
            team.barrier(none);
        }
    });
    for (uint32_t i = 1; i <= 20; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        said = i;
        team.barrier(none);
        team.barrier(none);
    }
    other.join();
}

double cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

TEST(team_members_whose_patience_ends_use_no_more_of_a_core) {
    Team team(2);
    double used = 0;
    std::thread other([&] {
        used = -cpu_seconds();
        team.barrier();
        used += cpu_seconds();
    });
    std::this_thread::sleep_for(10 * kWithinStep);
    team.barrier();
    other.join();
    CHECK(used < 5 * std::chrono::duration<double>(kWithinStep).count());
}

}  // namespace
}  // namespace edge
