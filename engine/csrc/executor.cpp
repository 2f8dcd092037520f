#include "executor.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>

#ifdef EDGE_X86
#include <immintrin.h>
#endif

namespace edge {
namespace {

constexpr uint32_t kMaxThreads = 256;
constexpr uint32_t kBlocksAhead = 64;  // of the highest in use: more than a step takes
constexpr uint32_t kNoMore = ~uint32_t{0};

double seconds_of(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double monotonic() { return seconds_of(CLOCK_MONOTONIC); }

// Threads inherit the creator's floating-point mode, which a library may have set to flush denormals.
void default_float_mode() {
#ifdef EDGE_X86
    _mm_setcsr(0x1f80);
#endif
}

void check_range(const char* name, uint32_t value, uint32_t most) {
    if (value == 0 || value > most)
        throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", not in [1, " +
                                    std::to_string(most) + "]");
}

const Limits& checked(const Limits& limits, uint32_t threads) {
    check_limits(limits, threads);
    return limits;
}

bool has_low_bytes(uint32_t activation_bits) {
    if (activation_bits != 8 && activation_bits != 16)
        throw std::invalid_argument("activation_bits is " + std::to_string(activation_bits) + ", not 8 or 16");
    return activation_bits == 16;
}

}  // namespace

void check_limits(const Limits& limits, uint32_t threads) {
    check_range("threads", threads, kMaxThreads);
    check_range("slots", limits.slots, 1u << 12);
    check_range("blocks", limits.blocks, 1u << 24);
    check_range("context", limits.context, 1u << 24);
    check_range("step_tokens", limits.step_tokens, 1u << 16);
}

Executor::Executor(const std::string& path, const ModelConfig& config, const std::vector<TensorEntry>& tensors,
                   const Limits& limits, uint32_t threads, const std::string& isa, uint32_t activation_bits,
                   std::vector<Placement> plan, KvType kv_type)
    : model_(path, config, tensors),
      kernels_(kernels_for(isa)),
      limits_(checked(limits, threads)),
      team_(threads),
      arena_(std::move(plan)),
      forward_(model_, kernels_, limits_, team_, arena_, has_low_bytes(activation_bits), kv_type),
      writer_(limits_, config.vocab),
      wanted_blocks_(std::min(limits.blocks, kBlocksAhead)),
      thread_ids_(threads + 1),
      owner_(::getpid()),
      threads_(std::make_unique<std::vector<std::thread>>()) {
    for (uint32_t i = 0; i < kDepth; ++i) ring_.emplace_back(limits_);
    threads_->reserve(threads + 1);
    const auto abandon = [this] {
        begin(Begin::abandon);
        for (std::thread& thread : *threads_) thread.join();
    };
    try {
        threads_->emplace_back(&Executor::execute, this);
        for (uint32_t member = 1; member < threads; ++member) threads_->emplace_back(&Executor::work, this, member);
        threads_->emplace_back(&Executor::fault_ahead, this);
    } catch (const std::system_error& error) {
        abandon();
        throw std::runtime_error("cannot begin " + std::to_string(threads + 1) + " threads: " + error.what() +
                                 "; take fewer --threads, or raise the limit on processes or address space (ulimit "
                                 "-u, -v)");
    } catch (...) {
        abandon();
        throw;
    }
    begin(Begin::run);
}

Executor::~Executor() { close(); }

void Executor::submit(int64_t step, const std::vector<PlanRow>& rows) {
    check_usable();
    if (sent_ - collected_ >= kDepth)
        throw std::runtime_error(std::to_string(kDepth) + " plans are submitted and not collected; collect one first");
    Job& job = ring_[sent_ % kDepth];
    writer_.begin(job, step);
    for (const PlanRow& row : rows) writer_.add(job, row);
    writer_.commit(job);
    if (!job.blocks.empty()) want_blocks(*std::max_element(job.blocks.begin(), job.blocks.end()));
    ++sent_;
    submitted_.fetch_add(2);
    submitted_.notify_one();
}

void Executor::allow(uint32_t slot, int64_t step, const uint32_t* allowed) {
    check_usable();
    if (slot >= limits_.slots) throw std::invalid_argument("there are " + std::to_string(limits_.slots) + " slots");
    forward_.masks().give(slot, step, allowed);
}

const Job& Executor::collect() {
    check_usable();
    if (sent_ == collected_) throw std::runtime_error("no plan is submitted; nothing to collect");
    while (completed_.load(std::memory_order_acquire) == collected_) completed_.wait(collected_);
    return ring_[collected_++ % kDepth];
}

const float* Executor::logits(uint32_t slot) const {
    check_usable();
    if (sent_ != collected_) throw std::runtime_error("logits can be read only while no plan is submitted");
    if (slot >= limits_.slots) throw std::invalid_argument("there are " + std::to_string(limits_.slots) + " slots");
    return forward_.has_logits(slot) ? forward_.logits(slot) : nullptr;
}

std::vector<double> Executor::worker_seconds() const {
    check_usable();
    std::vector<double> seconds(team_.members());
    for (size_t i = 0; i < seconds.size(); ++i) {
        clockid_t clock{};
        if (::pthread_getcpuclockid((*threads_)[i].native_handle(), &clock) == 0) seconds[i] = seconds_of(clock);
    }
    return seconds;
}

std::vector<pid_t> Executor::thread_ids() const {
    check_usable();
    std::vector<pid_t> ids;
    for (const std::atomic<pid_t>& id : thread_ids_)
        if (const pid_t known = id.load(std::memory_order_relaxed)) ids.push_back(known);
    return ids;
}

const void* Executor::block(uint32_t block) const {
    check_usable();
    if (block >= limits_.blocks)
        throw std::invalid_argument("block " + std::to_string(block) + " is outside the pool of " +
                                    std::to_string(limits_.blocks));
    return forward_.block(block);
}

void Executor::write_block(uint32_t block, const void* content) {
    std::memcpy(const_cast<void*>(this->block(block)), content, block_bytes());
    want_blocks(block);
}

void Executor::release() {
    check_usable();
    if (sent_ != collected_) throw std::runtime_error("memory can be released only while no plan is submitted");
    wanted_blocks_.store(0);
    wanted_blocks_.notify_one();
    for (uint32_t faulted; (faulted = faulted_blocks_.load()) != 0;) faulted_blocks_.wait(faulted);
    forward_.release();
}

void Executor::close() {
    if (!threads_) return;
    if (::getpid() != owner_) {
        threads_.release();  // they live in the parent; joining or destroying them here would hang or abort
        return;
    }
    forward_.masks().close();
    submitted_.fetch_or(1);
    submitted_.notify_one();
    wanted_blocks_.store(kNoMore);
    wanted_blocks_.notify_one();
    for (std::thread& thread : *threads_) thread.join();
    threads_.reset();
}

void Executor::check_usable() const {
    if (::getpid() != owner_)
        throw std::runtime_error("the executor belongs to the process that made it, not to its fork");
    if (!threads_) throw std::runtime_error("the executor is closed");
}

void Executor::begin(Begin how) {
    begin_.store(static_cast<uint32_t>(how));
    begin_.notify_all();
}

bool Executor::began(uint32_t thread) {
    thread_ids_[thread].store(::gettid(), std::memory_order_relaxed);
    default_float_mode();
    wait_change(begin_, static_cast<uint32_t>(Begin::wait), kBetweenSteps);
    return begin_.load() == static_cast<uint32_t>(Begin::run);
}

// Whether more than `done` plans are submitted, by a value of submitted_: the count differs, not only the closing bit.
bool Executor::has_plan(uint32_t seen, uint32_t done) { return (seen ^ done << 1) > 1; }

// Waits until more than `done` plans are submitted; false if the executor closes instead.
bool Executor::next(uint32_t done) {
    for (;;) {
        const uint32_t seen = submitted_.load(std::memory_order_acquire);
        if (has_plan(seen, done)) return true;
        if (seen % 2 != 0) return false;
        wait_change(submitted_, seen, kBetweenSteps);
    }
}

// Member 0: takes plans in order, leads the team through each. Waking the collector takes a system call, which would
// stand between two steps: with a plan at hand the team begins it first.
void Executor::execute() {
    if (!began(0)) return;
    bool untold = false;
    const auto tell = [&] {
        if (untold) completed_.notify_one();
        untold = false;
    };
    for (uint32_t done = 0;; ++done) {
        if (!has_plan(submitted_.load(std::memory_order_acquire), done)) tell();
        if (!next(done)) break;
        Job& job = ring_[done % kDepth];
        const bool runs = forward_.prepare(job);
        if (runs) team_.barrier();
        job.started = monotonic();  // of the first kernel: laying out the batch is part of the gap before it
        tell();
        if (runs) forward_.run(0);
        job.ended = monotonic();
        completed_.fetch_add(1);
        untold = true;
    }
    stopping_ = true;
    team_.barrier();
}

void Executor::work(uint32_t member) {
    if (!began(member)) return;
    for (;;) {
        team_.barrier(kBetweenSteps);
        if (stopping_) return;
        forward_.run(member);
    }
}

void Executor::want_blocks(uint32_t last) {
    const uint32_t wanted = std::min(limits_.blocks, last + 1 + kBlocksAhead);
    if (wanted <= wanted_blocks_.load(std::memory_order_relaxed)) return;
    wanted_blocks_.store(wanted);
    wanted_blocks_.notify_one();
}

// The pool hands out its lowest blocks first: what lies behind the highest in use is what comes next.
void Executor::fault_ahead() {
    if (!began(team_.members())) return;
    for (;;) {
        const uint32_t wanted = wanted_blocks_.load(), done = faulted_blocks_.load();
        if (wanted == kNoMore) return;
        if (done < wanted) {
            forward_.fault_block(done);
            faulted_blocks_.store(done + 1);
        } else if (wanted == 0 && done != 0) {
            faulted_blocks_.store(0);
            faulted_blocks_.notify_one();
        } else {
            wanted_blocks_.wait(wanted);
        }
    }
}

}  // namespace edge
