// A step as it travels from the submitting thread to the executor's, and its result back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling.h"

namespace edge {

struct Limits {
    uint32_t slots = 0;
    uint32_t blocks = 0;  // KV blocks in the pool
    uint32_t context = 0;
    uint32_t step_tokens = 0;
};

enum class Finish : uint8_t { none, stop, error };

// One row as the scheduler states it; see engine/step.py.
struct PlanRow {
    uint32_t slot = 0;
    uint32_t start = 0;
    std::span<const uint32_t> tokens;  // empty: the token that the slot sampled last
    std::span<const uint32_t> blocks;
    bool sample = false;
    const Sampling* opens = nullptr;
    std::span<const uint32_t> history;  // all tokens known, where `opens` penalises
};

// A job lives in a ring and is filled again and again; its vectors are reserved once.
struct Job {
    struct Row {
        uint32_t slot, start, count;
        uint32_t first_token, first_block;  // into `tokens` (unless decode) and `blocks`
        uint32_t first_history, history;    // into `histories`
        bool decode, sample;
        const Sampling* opens;  // in `openings`, or null
    };
    struct Outcome {
        uint32_t slot;
        bool sampled;
        uint32_t token;
        Finish finish;
        bool told;  // `logprobs` is there
        Logprobs logprobs;
    };

    int64_t step = 0;
    std::vector<Row> rows;
    std::vector<uint32_t> tokens;
    std::vector<uint32_t> blocks;
    std::vector<Sampling> openings;
    std::vector<uint32_t> histories;
    std::vector<Outcome> outcomes;  // one a row
    double started = 0.0;           // CLOCK_MONOTONIC, seconds
    double ended = 0.0;

    explicit Job(const Limits& limits);
};

// Copies plans into jobs and refuses what breaks the contract, so that the executor's threads meet valid plans only.
class PlanWriter {
  public:
    PlanWriter(const Limits& limits, uint32_t vocab);

    void begin(Job& job, int64_t step);
    // Throws std::invalid_argument naming the row and what is wrong with it; the job is then to be begun again.
    void add(Job& job, const PlanRow& row);
    // The job will run: remembers which slots it opens and samples.
    void commit(const Job& job);

  private:
    void check_row(const Job& job, const PlanRow& row) const;
    void check_sampling(const PlanRow& row) const;
    void check_token(const PlanRow& row, uint32_t token, const char* which) const;
    void claim_blocks(const PlanRow& row);

    struct Slot {
        bool opened = false;
        bool sampled = false;
        uint64_t plan = 0;  // that last named it
    };

    const Limits limits_;
    const uint32_t vocab_;
    uint64_t plan_ = 0;
    std::vector<Slot> slots_;
    std::vector<uint64_t> writers_;  // per block: the plan that last wrote it
};

}  // namespace edge
