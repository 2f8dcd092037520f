// A step after the first ones allocates nothing. Sanitizers bring an allocator of their own: not counted there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <atomic>

#include "check.h"
#include "executor.h"
#include "tiny_model.h"

static std::atomic<uint64_t> allocations{0};

// glibc's own names for what is counted here; operator new comes through malloc.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t size) { return ++allocations, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return ++allocations, __libc_calloc(count, size); }
void* realloc(void* from, size_t size) { return ++allocations, __libc_realloc(from, size); }
void* aligned_alloc(size_t alignment, size_t size) { return ++allocations, __libc_memalign(alignment, size); }
}

namespace edge {
namespace {

TEST(steps_allocate_nothing_after_the_first) {
    const uint64_t before = allocations;
    ::operator delete(::operator new(100));  // the count counts
    CHECK(allocations > before);
    const test::TinyModel model(true);
    const Limits limits{.slots = 2, .blocks = 80, .context = 600, .step_tokens = 96};
    Executor executor(model.path, model.config, model.tensors, limits, 2, "");
    const std::vector<uint32_t> prompt(90, 5), first(40), other(40);
    const Sampling samplings[2] = {{.temperature = 0.9,
                                    .top_p = 0.95,
                                    .repetition = 1.2f,
                                    .frequency = 0.5f,
                                    .seed = 3,
                                    .first = 90,
                                    .logprobs = true,
                                    .top_logprobs = kMaxTop},
                                   {.temperature = 0.0, .min_p = 0.1, .logprobs = true}};
    std::vector<uint32_t> blocks[2];
    for (uint32_t i = 0; i < 80; ++i) blocks[i % 2].push_back(i);
    std::vector<PlanRow> plans[3];
    for (uint32_t slot = 0; slot < 2; ++slot) {
        plans[0].push_back({slot, 0, {prompt.data(), slot ? 6u : 90u}, blocks[slot], true, &samplings[slot], prompt});
        plans[1].push_back({slot, 90, {}, blocks[slot], true, nullptr, {}});
        plans[2].push_back({slot, 300, {prompt.data(), slot ? 1u : 50u}, blocks[slot], slot == 0, nullptr, {}});
    }
    uint64_t counted = 0;
    for (int round = 0; round < 20; ++round) {
        if (round == 2) counted = allocations;
        for (const std::vector<PlanRow>& plan : plans) {
            executor.submit(round, plan);
            CHECK(executor.collect().outcomes[0].finish == Finish::none);
        }
    }
    CHECK(allocations == counted);
}

}  // namespace
}  // namespace edge

#endif
