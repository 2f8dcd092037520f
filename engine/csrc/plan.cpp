#include "plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace edge {
namespace {

constexpr size_t kMostHistory = size_t{1} << 22;  // tokens that are reserved; untouched pages cost nothing

uint32_t blocks_for(uint64_t positions) { return static_cast<uint32_t>((positions + kBlockTokens - 1) / kBlockTokens); }

uint32_t count_of(const PlanRow& row) { return row.tokens.empty() ? 1 : static_cast<uint32_t>(row.tokens.size()); }

[[noreturn]] void refuse(const PlanRow& row, const std::string& what) {
    throw std::invalid_argument("row of slot " + std::to_string(row.slot) + ": " + what);
}

}  // namespace

Job::Job(const Limits& limits) {
    rows.reserve(limits.slots);
    outcomes.reserve(limits.slots);
    tokens.reserve(limits.step_tokens);
    blocks.reserve(size_t{limits.slots} * blocks_for(limits.context));
    openings.reserve(limits.slots);
    histories.reserve(std::min(size_t{limits.slots} * limits.context, kMostHistory));
}

PlanWriter::PlanWriter(const Limits& limits, uint32_t vocab)
    : limits_(limits), vocab_(vocab), slots_(limits.slots), writers_(limits.blocks) {}

void PlanWriter::begin(Job& job, int64_t step) {
    ++plan_;
    job.step = step;
    job.rows.clear();
    job.outcomes.clear();
    job.tokens.clear();
    job.blocks.clear();
    job.openings.clear();
    job.histories.clear();
}

void PlanWriter::add(Job& job, const PlanRow& row) {
    check_row(job, row);
    if (row.opens) check_sampling(row);
    claim_blocks(row);
    slots_[row.slot].plan = plan_;
    if (row.opens) job.openings.push_back(*row.opens);
    const std::span<const uint32_t> history =
        row.opens && row.opens->penalises() ? row.history : std::span<const uint32_t>{};
    job.rows.push_back({.slot = row.slot,
                        .start = row.start,
                        .count = count_of(row),
                        .first_token = static_cast<uint32_t>(job.tokens.size()),
                        .first_block = static_cast<uint32_t>(job.blocks.size()),
                        .first_history = static_cast<uint32_t>(job.histories.size()),
                        .history = static_cast<uint32_t>(history.size()),
                        .decode = row.tokens.empty(),
                        .sample = row.sample,
                        .opens = row.opens ? &job.openings.back() : nullptr});
    job.tokens.insert(job.tokens.end(), row.tokens.begin(), row.tokens.end());
    job.blocks.insert(job.blocks.end(), row.blocks.begin(), row.blocks.begin() + blocks_for(row.start + count_of(row)));
    job.histories.insert(job.histories.end(), history.begin(), history.end());
    job.outcomes.push_back(
        {.slot = row.slot, .sampled = false, .token = 0, .finish = Finish::none, .told = false, .logprobs = {}});
}

void PlanWriter::commit(const Job& job) {
    for (const Job::Row& row : job.rows) {
        Slot& slot = slots_[row.slot];
        if (row.opens) slot = {true, false, slot.plan};
        slot.sampled |= row.sample;
    }
}

void PlanWriter::check_row(const Job& job, const PlanRow& row) const {
    if (row.slot >= limits_.slots) refuse(row, "there are " + std::to_string(limits_.slots) + " slots");
    const Slot& slot = slots_[row.slot];
    if (slot.plan == plan_) refuse(row, "the slot has another row in this step");
    if (!row.opens && !slot.opened) refuse(row, "the slot was never opened");
    if (row.tokens.empty() && (row.opens || !slot.sampled))
        refuse(row, "a decode row, but the slot has sampled no token yet");
    uint64_t step_tokens = row.tokens.empty() ? 1 : row.tokens.size();
    const uint64_t end = row.start + step_tokens;
    for (const Job::Row& other : job.rows) step_tokens += other.count;
    if (step_tokens > limits_.step_tokens)
        refuse(row, "the step has " + std::to_string(step_tokens) + " tokens or more, the limit is " +
                        std::to_string(limits_.step_tokens));
    if (end > limits_.context)
        refuse(row,
               "it ends at position " + std::to_string(end) + ", the context has " + std::to_string(limits_.context));
    if (row.blocks.size() < blocks_for(end))
        refuse(row, std::to_string(row.blocks.size()) + " blocks do not cover " + std::to_string(end) + " positions");
    for (const uint32_t token : row.tokens) check_token(row, token, "");
    for (const uint32_t block : row.blocks)
        if (block >= limits_.blocks)
            refuse(row, "block " + std::to_string(block) + " is outside the pool of " + std::to_string(limits_.blocks));
}

void PlanWriter::check_token(const PlanRow& row, uint32_t token, const char* which) const {
    if (token < vocab_) return;
    refuse(row, std::string(which) + (*which ? " " : "") + "token " + std::to_string(token) +
                    " is outside the vocabulary of " + std::to_string(vocab_));
}

void PlanWriter::check_sampling(const PlanRow& row) const {
    const Sampling& s = *row.opens;
    if (!(std::isfinite(s.temperature) && s.temperature >= 0.0)) refuse(row, "temperature must be a number >= 0");
    if (!(s.top_p > 0.0 && s.top_p <= 1.0)) refuse(row, "top_p must be in (0, 1]");
    if (!(s.min_p >= 0.0 && s.min_p <= 1.0)) refuse(row, "min_p must be in [0, 1]");
    if (!(std::isfinite(s.repetition) && s.repetition > 0.0f)) refuse(row, "repetition must be a number > 0");
    if (!std::isfinite(s.frequency)) refuse(row, "frequency must be a number");
    if (!std::isfinite(s.presence)) refuse(row, "presence must be a number");
    for (uint32_t i = 0; i < s.bias_count; ++i) {
        check_token(row, s.bias_ids[i], "biased");
        if (!std::isfinite(s.biases[i])) refuse(row, "a bias must be a number");
    }
    for (uint32_t i = 0; i < s.stop_count; ++i)
        if (s.min_tokens != 0) check_token(row, s.stop_ids[i], "stop");
    if (!s.penalises()) return;
    if (row.history.size() < row.start + row.tokens.size())
        refuse(row, "it penalises, but its history has only " + std::to_string(row.history.size()) + " tokens");
    if (row.history.size() > limits_.context)
        refuse(row, "its history is longer than the context of " + std::to_string(limits_.context));
    for (const uint32_t token : row.history) check_token(row, token, "history's");
}

// A block that two rows write, or that stands twice in one table, would lose positions.
void PlanWriter::claim_blocks(const PlanRow& row) {
    const uint32_t first = row.start / kBlockTokens, end = blocks_for(row.start + count_of(row));
    for (uint32_t i = first; i < end; ++i) {
        uint64_t& writer = writers_[row.blocks[i]];
        if (writer == plan_) refuse(row, "block " + std::to_string(row.blocks[i]) + " is written twice in this step");
        writer = plan_;
    }
}

}  // namespace edge
