// A job's rows as one batch of tokens, and how it is divided among the team.
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"
#include "plan.h"

namespace edge {

class Batch {
  public:
    struct Token {
        uint32_t id, position, block;
        const uint32_t* blocks;  // its sequence's table
    };
    // Consecutive positions of one sequence that attend together.
    struct Unit {
        uint32_t token, queries;
    };
    // Tokens [token, token + count) and their units.
    struct Chunk {
        uint32_t token, count;
        uint32_t unit, unit_end;
        bool drawn;  // the logits of one of them are wanted
    };
    // A part of a unit's attention that one member computes.
    struct Item {
        uint32_t unit, head, from, part;  // KV head; its query heads from `from` on
    };
    struct Draw {
        uint32_t token;  // whose logits are wanted
        uint32_t position;
        uint32_t row;  // in the job
    };

    Batch(const ModelConfig& config, const Limits& limits, uint32_t members);

    void clear();
    // Adds the tokens of a row of the job, which outlives the batch; `last` is what a decode row runs.
    void add(const Job& job, uint32_t row, uint32_t last);
    // Divides what was added. False if there is nothing.
    bool divide();

    // Few tokens: members divide the outputs of every matrix. Many: they divide the tokens, in chunks.
    bool by_outputs() const { return tokens_.size() <= few_; }
    uint32_t few() const { return few_; }    // most tokens of a batch divided by outputs
    uint32_t span() const { return span_; }  // most tokens of a chunk
    uint32_t most_parts() const { return most_parts_; }

    const std::vector<Token>& tokens() const { return tokens_; }
    const std::vector<Unit>& units() const { return units_; }
    const std::vector<Chunk>& chunks() const { return chunks_; }
    const std::vector<Item>& items() const { return items_; }  // of a batch divided by outputs
    const std::vector<Draw>& draws() const { return draws_; }
    const uint32_t* draw_slots() const { return draw_slots_.data(); }  // of draws

  private:
    void cut(uint32_t chunks);
    void list_items();

    const uint32_t heads_, kv_heads_, members_;
    const uint32_t few_;
    const uint32_t span_;
    const uint32_t most_parts_;
    std::vector<Token> tokens_;
    std::vector<Unit> units_;
    std::vector<Chunk> chunks_;
    std::vector<Item> items_;
    std::vector<Draw> draws_;
    std::vector<uint32_t> draw_slots_;
};

}  // namespace edge
