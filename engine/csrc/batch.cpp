#include "batch.h"

#include <algorithm>

#include "kernels.h"
#include "team.h"

namespace edge {
namespace {

constexpr uint32_t kMostChunk = 48;  // tokens
constexpr uint32_t kFewTokens = 16;  // and, of many members, a token tile for each
constexpr uint32_t kMemberTokens = 12;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

}  // namespace

Batch::Batch(const ModelConfig& config, const Limits& limits, uint32_t members)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      members_(members),
      few_(std::min(limits.step_tokens, std::max(kFewTokens, kMemberTokens * members))),
      span_(std::min(limits.step_tokens, std::max(few_, kMostChunk))),
      most_parts_(ceil_div(limits.context, kPartKeys)) {
    const size_t tokens = limits.step_tokens, most_draws = std::min<size_t>(limits.slots, tokens);
    tokens_.reserve(tokens);
    units_.reserve(tokens);
    chunks_.reserve(std::max(members, ceil_div(limits.step_tokens, kMostChunk) + members));
    items_.reserve(size_t{few_} * kv_heads_ * ceil_div(heads_ / kv_heads_, kMaxGroup) * most_parts_);
    draws_.reserve(most_draws);
    draw_slots_.reserve(most_draws);
}

void Batch::clear() {
    tokens_.clear();
    draws_.clear();
    draw_slots_.clear();
}

void Batch::add(const Job& job, uint32_t index, uint32_t last) {
    const Job::Row& row = job.rows[index];
    const uint32_t* blocks = job.blocks.data() + row.first_block;
    for (uint32_t i = 0; i < row.count; ++i) {
        const uint32_t id = row.decode ? last : job.tokens[row.first_token + i];
        tokens_.push_back({id, row.start + i, blocks[(row.start + i) / kBlockTokens], blocks});
    }
    if (!row.sample) return;
    draws_.push_back({static_cast<uint32_t>(tokens_.size() - 1), row.start + row.count, index});
    draw_slots_.push_back(row.slot);
}

bool Batch::divide() {
    const auto count = static_cast<uint32_t>(tokens_.size());
    if (count == 0) return false;
    // As many chunks as fill all members alike.
    cut(by_outputs() ? 1 : std::min(count, ceil_div(ceil_div(count, kMostChunk), members_) * members_));
    if (by_outputs()) list_items();
    return true;
}

void Batch::cut(uint32_t chunks) {
    units_.clear();
    chunks_.clear();
    uint32_t draw = 0;
    for (uint32_t i = 0; i < chunks; ++i) {
        const Range range = share(static_cast<uint32_t>(tokens_.size()), i, chunks);
        Chunk chunk{range.from, range.to - range.from, static_cast<uint32_t>(units_.size()), 0, false};
        for (uint32_t token = range.from; token < range.to; ++token) {
            const bool follows = units_.size() > chunk.unit && units_.back().queries < kMaxQueries &&
                                 tokens_[token - 1].blocks == tokens_[token].blocks;
            if (follows)
                ++units_.back().queries;
            else
                units_.push_back({token, 1});
        }
        chunk.unit_end = static_cast<uint32_t>(units_.size());
        while (draw < draws_.size() && draws_[draw].token < range.to) ++draw, chunk.drawn = true;
        chunks_.push_back(chunk);
    }
}

void Batch::list_items() {
    const uint32_t group = heads_ / kv_heads_;
    items_.clear();
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
        const uint32_t last = tokens_[units_[unit].token].position + units_[unit].queries - 1;
        for (uint32_t part = 0; part <= last / kPartKeys; ++part)
            for (uint32_t head = 0; head < kv_heads_; ++head)
                for (uint32_t from = 0; from < group; from += kMaxGroup) items_.push_back({unit, head, from, part});
    }
}

}  // namespace edge
