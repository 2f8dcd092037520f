// One step of the model over all rows of a plan: tokens in, KV written, next tokens sampled.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "model.h"
#include "plan.h"
#include "sampler.h"
#include "team.h"

namespace edge {

class Forward {
  public:
    // Takes all memory that steps need. Throws std::bad_alloc.
    Forward(const Model& model, const Kernels& kernels, const Limits& limits, Team& team);

    // Lays the job's rows out as one batch of tokens; leaves out rows of finished slots. On one thread, before run.
    // False if nothing is left to run.
    bool prepare(Job& job);
    // Runs the prepared batch, which is not empty; every member of the team must call it.
    void run(uint32_t member);

    const float* logits(uint32_t slot) const { return logits_.data() + size_t{slot} * model_.config.vocab; }
    bool has_logits(uint32_t slot) const { return slots_[slot].has_logits; }

  private:
    struct Slot {
        Sampling sampling;
        uint32_t last = 0;  // token sampled last
        bool finished = false;
        bool has_logits = false;
    };
    struct Token {
        uint32_t id, position, block;
    };
    // Consecutive positions of one row that attend together.
    struct Unit {
        uint32_t token, queries, position;
        const uint32_t* blocks;
    };
    struct Draw {
        uint32_t token;  // whose logits are wanted
        uint32_t position;
        uint32_t row;  // in the job
    };

    void place(const Job& job, const Job::Row& row);
    void embed(uint32_t token);
    void project_head(const Layer& layer, uint32_t index, uint32_t head, float* scratch);
    void rotate(float* heads, size_t stride) const;
    void store(uint32_t layer, uint32_t head, const float* heads, bool values);
    void attention(uint32_t layer, uint32_t item, float* scratch);
    void add(const Matrix& weights, const float* x, uint32_t row0, uint32_t row1, float* scratch);
    void feed(const Layer& layer, uint32_t row0, uint32_t row1, float* scratch);
    void layer(uint32_t index, float* scratch);
    void head(float* scratch);
    void draw(uint32_t index, uint32_t member);
    template <class F>
    void split(uint32_t rows, F&& fn);

    const Model& model_;
    const Kernels& kernels_;
    Team& team_;

    std::vector<Slot> slots_;
    std::vector<Sampler> samplers_;  // one a member
    Job* job_ = nullptr;
    std::vector<Token> tokens_;
    std::vector<Unit> units_;
    std::vector<Draw> draws_;

    const size_t kv_head_;   // f16 elements of one KV head's 16 keys and values
    const size_t kv_layer_;  // of one layer of a block
    const size_t kv_block_;  // of a block: [layer][KV head][K [head_dim][16], V [16][head_dim]]
    Buffer<uint16_t> kv_;

    // Activations, a row a token.
    Buffer<float> x_;                  // residual stream [hidden]
    Buffer<float> normed_;             // [hidden]
    Buffer<float> q_;                  // [q_dim]
    Buffer<float> kv_rows_;            // keys, then values [2 * kv_dim]
    Buffer<float> attended_;           // [q_dim]
    Buffer<float> gate_;               // [ffn]
    Buffer<float> up_;                 // [ffn]
    Buffer<float> delta_;              // what is added to x [hidden]
    Buffer<float> angles_;             // cos [head_dim / 2], then sin
    std::vector<double> frequencies_;  // [head_dim / 2]

    Buffer<float> drawn_;    // logits of this step [draws][vocab]
    Buffer<float> logits_;   // last logits [slots][vocab]
    Buffer<float> scratch_;  // [members][scratch_each_]
    size_t scratch_each_;
};

}  // namespace edge
