// Owns the threads, the memory and the queue of plans: submit on one side, collect on the other.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "forward.h"
#include "kernels.h"
#include "model.h"
#include "plan.h"
#include "team.h"

namespace edge {

// Throws std::invalid_argument naming the number that no executor is built for.
void check_limits(const Limits& limits, uint32_t threads);

// Used by one thread. After a fork the child may only destroy it.
class Executor {
  public:
    static constexpr uint32_t kDepth = 2;  // plans submitted and not collected

    // threads: 1 executor thread and threads - 1 workers; one more faults KV pages ahead of use. activation_bits: 8 or
    // 16, before packed weights. plan: of the arena. Throws std::invalid_argument, std::runtime_error, std::bad_alloc.
    Executor(const std::string& path, const ModelConfig& config, const std::vector<TensorEntry>& tensors,
             const Limits& limits, uint32_t threads, const std::string& isa, uint32_t activation_bits = 16,
             std::vector<Placement> plan = {}, KvType kv_type = KvType::f16);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    const char* isa() const { return kernels_.name; }
    uint32_t vocab() const { return model_.config.vocab; }
    const MappedFile& file() const { return model_.file; }

    // Throws std::invalid_argument for a plan that breaks the contract, std::runtime_error if kDepth plans are out
    // already or the executor is closed; nothing is submitted then. Never blocks.
    void submit(int64_t step, const std::vector<PlanRow>& rows);
    // Which tokens a constrained slot may sample in a step that was submitted: bits [mask_words(vocab)], or null for
    // all. Every such sample needs it, also where its result is no longer wanted. Throws std::invalid_argument.
    void allow(uint32_t slot, int64_t step, const uint32_t* allowed);
    // Waits for the oldest plan. The result is valid until the next submit.
    const Job& collect();
    // The slot's last logits [vocab], or null if it has none. Throws std::runtime_error while plans are out.
    const float* logits(uint32_t slot) const;
    // CPU time of each member of the team since it began, in seconds.
    std::vector<double> worker_seconds() const;
    // The system's names (gettid) of its threads, as far as they run already.
    std::vector<pid_t> thread_ids() const;
    // Keys and values of all layers of a KV block [block_bytes]. No submitted plan may write the block while they are
    // read, nor name it when they are written. Throws std::invalid_argument for a block outside the pool.
    size_t block_bytes() const { return forward_.block_bytes(); }
    const void* block(uint32_t block) const;
    void write_block(uint32_t block, const void* content);
    // Gives KV and activations back to the system, which gives zeros where they are next touched; logits are gone.
    // Throws std::runtime_error while plans are out.
    void release();
    // Waits for submitted plans and ends the threads. Idempotent.
    void close();

  private:
    enum class Begin : uint32_t { wait, run, abandon };

    void check_usable() const;
    void begin(Begin how);
    bool began(uint32_t thread);
    static bool has_plan(uint32_t seen, uint32_t done);
    bool next(uint32_t done);
    void execute();
    void work(uint32_t member);
    void want_blocks(uint32_t last);
    void fault_ahead();

    Model model_;
    const Kernels& kernels_;
    const Limits limits_;
    Team team_;
    Arena arena_;
    Forward forward_;
    PlanWriter writer_;
    std::vector<Job> ring_;
    uint32_t sent_ = 0;
    uint32_t collected_ = 0;
    std::atomic<uint32_t> begin_{0};      // a Begin
    std::atomic<uint32_t> submitted_{0};  // plans times two; odd once closing
    std::atomic<uint32_t> completed_{0};
    std::atomic<uint32_t> wanted_blocks_;      // whose pages shall be there; kNoMore once closing
    std::atomic<uint32_t> faulted_blocks_{0};  // whose pages are there, as far as that is done ahead of use
    bool stopping_ = false;                    // tells the workers; written before a barrier, read after it
    std::vector<std::atomic<pid_t>> thread_ids_;
    const pid_t owner_;
    std::unique_ptr<std::vector<std::thread>> threads_;  // null once closed
};

}  // namespace edge
