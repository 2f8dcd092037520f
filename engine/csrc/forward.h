// One step of the model over all rows of a plan: tokens in, KV written, next tokens sampled.
//
// Few tokens: members divide the outputs of every matrix, each of them quantises all tokens for itself, and a barrier
// stands between phases. Many: members take chunks of tokens through a whole layer, with one barrier a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.h"
#include "kernels.h"
#include "masks.h"
#include "model.h"
#include "plan.h"
#include "sampler.h"
#include "team.h"

namespace edge {

class Forward {
  public:
    // Takes its memory from the arena, which outlives it. low_bytes: activations have 16 bits before packed weights,
    // and else 8. Throws std::invalid_argument where the arena has it not.
    Forward(const Model& model, const Kernels& kernels, const Limits& limits, Team& team, Arena& arena, bool low_bytes,
            KvType kv_type);

    // Lays the job's rows out as one batch of tokens; leaves out rows of finished slots. On one thread, before run.
    // False if nothing is left to run.
    bool prepare(Job& job);
    // Runs the prepared batch, which is not empty; every member of the team must call it.
    void run(uint32_t member);

    // Has the system give the block's pages now. On any thread, also while a batch runs.
    void fault_block(uint32_t block) const { arena_.populate(kv_ + block * kv_block_, kv_block_); }

    // What constrained slots may sample in a step; draws wait for it.
    Masks& masks() { return masks_; }

    // Gives memory back; KV and logits are lost. While nothing runs.
    void release();

    uint8_t* block(uint32_t block) const { return kv_ + block * kv_block_; }
    size_t block_bytes() const { return kv_block_; }

    const float* logits(uint32_t slot) const { return logits_ + size_t{slot} * model_.config.vocab; }
    bool has_logits(uint32_t slot) const { return slots_[slot].has_logits; }

  private:
    struct Slot {
        Sampling sampling;
        uint32_t last = 0;  // token sampled last
        bool finished = false;
        bool has_logits = false;
        Seen seen;  // where the sampling penalises
    };
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
    // What a member, or all of them together, needs for a chunk: rows of `span_` tokens.
    struct Workspace {
        Workspace(const ModelConfig& config, uint32_t span, bool low_bytes, Arena& arena, uint32_t member);

        float* rows;       // input of a group of matrices [hidden or q_dim]
        float* kv;         // keys, then values [2 * kv_dim]
        float* gate;       // some of its outputs [32]
        float* up;         // the same [32]
        float* piece;      // outputs of a matrix that is not packed [kPanelRows]
        float* mixed;      // gate and up put together [ffn], where the matrix behind them is not packed
        Quantised in;      // of rows
        Quantised middle;  // of mixed
        float* scratch;
    };
    // A member's share of a chunk: all of it, or the outputs that it owns of every matrix.
    struct Slice {
        Chunk chunk;
        uint32_t member, members;
        Workspace& own;
        Workspace& common;  // of the members that share the chunk
    };
    struct Input {
        const float* rows;
        size_t stride;
        Quantised quantised;
    };

    static void open(Slot& slot, const Job& job, const Job::Row& row);
    void place(const Job& job, const Job::Row& row);
    void cut(uint32_t chunks);
    void list_items();
    void run_by_outputs(uint32_t member);
    void run_by_tokens(uint32_t member);
    void embed(uint32_t token);
    Input normed(const Slice& slice, const float* weight, bool packed) const;
    void product(const Matrix& weights, uint32_t row0, uint32_t row1, const Input& in, uint32_t tokens,
                 const Output& out, Workspace& own, const uint8_t* next) const;
    void project(const Slice& slice, uint32_t layer);
    void rotate(const Slice& slice, float* rows, size_t stride, uint32_t row0, uint32_t row1) const;
    void store(const Slice& slice, uint32_t layer, const float* rows, uint32_t row0, uint32_t row1, bool values);
    void store_f16(const float* from, uint16_t* head, uint32_t first, uint32_t offset, bool values) const;
    void store_i8(const float* from, uint8_t* head, uint32_t first, uint32_t offset, bool values) const;
    Attend attention(const Unit& unit, uint32_t layer, uint32_t head, uint32_t from, float* scratch) const;
    void attend_item(const Item& item, uint32_t layer, Workspace& own);
    void attend_chunk(const Slice& slice, uint32_t layer) const;
    void join(const Slice& slice) const;
    void finish_layer(const Slice& slice, uint32_t layer);
    void feed(const Slice& slice, const Layer& layer) const;
    void head(uint32_t member);
    void draw(uint32_t index, uint32_t member);
    void meet(const Slice& slice) const;
    static const uint8_t* start(const Matrix& weights, const Slice& slice);

    const Model& model_;
    const Kernels& kernels_;
    Team& team_;
    const Arena& arena_;
    const uint32_t few_;   // up to so many tokens members divide the outputs
    const uint32_t span_;  // most tokens of a chunk
    const uint32_t most_parts_;

    std::vector<Slot> slots_;
    std::vector<Sampler> samplers_;  // one a member
    Masks masks_;
    Job* job_ = nullptr;
    std::vector<Token> tokens_;
    std::vector<Unit> units_;
    std::vector<Chunk> chunks_;
    std::vector<Item> items_;
    std::vector<Draw> draws_;
    std::vector<uint32_t> draw_slots_;  // of draws_

    const KvType kv_type_;
    const size_t kv_head_;   // bytes of one KV head's 16 keys and values
    const size_t kv_layer_;  // of one layer of a block
    const size_t kv_block_;  // of a block: [layer][KV head], as KvType has it
    uint8_t* kv_;

    float* x_;       // residual stream [step_tokens][hidden]
    float* q_;       // queries of a layer [step_tokens][q_dim]
    float* angles_;  // [step_tokens]: cosines [head_dim], sines [head_dim], as Kernels::rotate has them
    std::vector<double> frequencies_;    // [head_dim / 2]
    float* parts_;                       // [few_][heads][most_parts_][part_floats]
    float* logits_;                      // last logits [slots][vocab]
    std::vector<Workspace> workspaces_;  // one a member
};

}  // namespace edge
