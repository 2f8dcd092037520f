// One step of the model over all rows of a plan: tokens in, KV written, next tokens sampled.
//
// Few tokens: members divide the outputs of every matrix, each of them quantises all tokens for itself, and a barrier
// stands between phases. Many: members take chunks of tokens through a whole layer, with one barrier a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.h"
#include "attention.h"
#include "batch.h"
#include "kernels.h"
#include "kv_cache.h"
#include "masks.h"
#include "model.h"
#include "plan.h"
#include "sampler.h"
#include "team.h"
#include "workspace.h"

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
    void fault_block(uint32_t block) const { kv_.populate(block); }

    // What constrained slots may sample in a step; draws wait for it.
    Masks& masks() { return masks_; }

    // Gives memory back; KV and logits are lost. While nothing runs.
    void release();

    uint8_t* block(uint32_t block) const { return kv_.block(block); }
    size_t block_bytes() const { return kv_.block_bytes(); }

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
    // A member's share of a chunk: all of it, or the outputs that it owns of every matrix.
    struct Slice {
        Batch::Chunk chunk;
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
    void run_by_outputs(uint32_t member);
    void run_by_tokens(uint32_t member);
    void embed(uint32_t token);
    Input normed(const Slice& slice, const float* weight, bool packed) const;
    void product(const Matrix& weights, uint32_t row0, uint32_t row1, const Input& in, uint32_t tokens,
                 const Output& out, Workspace& own, const uint8_t* next) const;
    void project(const Slice& slice, uint32_t layer);
    void rotate(const Slice& slice, float* rows, size_t stride, uint32_t row0, uint32_t row1) const;
    void store(const Slice& slice, uint32_t layer, const float* rows, uint32_t row0, uint32_t row1, bool values) const;
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
    std::vector<Slot> slots_;
    std::vector<Sampler> samplers_;  // one a member
    Masks masks_;
    Job* job_ = nullptr;
    Batch batch_;
    const KvCache kv_;
    const Attention attention_;

    float* x_;       // residual stream [step_tokens][hidden]
    float* angles_;  // [step_tokens]: cosines [head_dim], sines [head_dim], as Kernels::rotate has them
    std::vector<double> frequencies_;    // [head_dim / 2]
    float* logits_;                      // last logits [slots][vocab]
    std::vector<Workspace> workspaces_;  // one a member
};

}  // namespace edge
