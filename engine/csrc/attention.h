// A layer's attention over the KV cache: whole, for a chunk of tokens, or in parts that members divide.
#pragma once

#include <cstdint>

#include "arena.h"
#include "batch.h"
#include "kernels.h"
#include "kv_cache.h"
#include "model.h"

namespace edge {

class Attention {
  public:
    // What it names outlives it. Throws std::invalid_argument where the arena has not its memory.
    Attention(const ModelConfig& config, const Kernels& kernels, const Batch& batch, const KvCache& kv,
              uint32_t step_tokens, Arena& arena);

    // The queries of a token of the batch [q_dim]; those of the next follow.
    float* queries(uint32_t token) const { return q_ + size_t{token} * config_.q_dim(); }
    // A chunk's attention, to out [chunk.count][q_dim].
    void chunk(const Batch::Chunk& chunk, uint32_t layer, float* out, float* scratch) const;
    // One item of a batch divided by outputs; `join` puts a chunk's together, to out [chunk.count][q_dim].
    void item(const Batch::Item& item, uint32_t layer, float* scratch) const;
    void join(const Batch::Chunk& chunk, float* out) const;

  private:
    Attend args(const Batch::Unit& unit, uint32_t layer, uint32_t head, uint32_t from, float* scratch) const;

    const ModelConfig& config_;
    const Kernels& kernels_;
    const Batch& batch_;
    const KvCache& kv_;
    const uint32_t group_;  // query heads of a KV head
    float* q_;              // queries of a layer [step_tokens][q_dim]
    float* parts_;          // [few][heads][most_parts][part_floats]
};

}  // namespace edge
