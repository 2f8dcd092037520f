// Which pages of the arena are there before a step needs them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "buffer.h"
#include "check.h"
#include "executor.h"
#include "pages.h"
#include "tiny_model.h"

namespace edge {
namespace {

using test::TinyModel;

constexpr Limits kLimits{.slots = 4, .blocks = 1 << 14, .context = 160, .step_tokens = 96};
constexpr uint32_t kFar = 12000;  // a block

uint8_t* page_of(const void* address) {
    const auto size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(address) & ~(size - 1));
}

bool resident(const Executor& executor, uint32_t block) {
    unsigned char there = 0;
    CHECK(::mincore(page_of(executor.block(block)), 1, &there) == 0);
    return (there & 1) != 0;
}

// Faulting happens beside the steps: waits for it, and fails if it does not come at all.
void comes(const Executor& executor, uint32_t block) {
    for (int i = 0; i < 10'000 && !resident(executor, block); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(resident(executor, block));
}

TEST(executor_faults_the_pages_of_kv_ahead_of_use) {
    const TinyModel model;
    Executor executor(model.path, model.config, model.tensors, kLimits, 2, "");
    uint8_t* far = page_of(executor.block(kFar));  // small pages: a huge one would bring the neighbours, asked or not
    CHECK(::madvise(far, page_of(executor.block(kLimits.blocks - 1)) - far, MADV_NOHUGEPAGE) == 0);
    comes(executor, 0);
    comes(executor, 63);
    CHECK(!resident(executor, kFar) && !resident(executor, kFar + 40));

    const std::vector<uint32_t> prompt{1, 2, 3}, blocks{kFar};
    const Sampling sampling{};
    executor.submit(1, {{0, 0, prompt, blocks, true, &sampling, {}}});
    executor.collect();
    CHECK(resident(executor, kFar));
    comes(executor, kFar + 40);  // nothing has touched this one
    CHECK(!resident(executor, kFar + 200));

    const std::vector<uint8_t> content(executor.block_bytes(), 7);
    executor.write_block(kFar + 400, content.data());
    comes(executor, kFar + 440);
}

TEST(executor_that_released_its_memory_has_none_of_it) {
    const TinyModel model;
    Executor executor(model.path, model.config, model.tensors, kLimits, 1, "");
    comes(executor, 63);
    executor.release();
    CHECK(!resident(executor, 0) && !resident(executor, 63));
}

TEST(buffer_asks_for_huge_pages) {
    if (!test::system_has_huge_pages()) return;
    const Buffer<uint8_t> buffer(size_t{8} << 20);
    CHECK(test::asks_for_huge_pages(buffer.data()));
}

}  // namespace
}  // namespace edge
