// The pool of KV blocks: [block][layer][KV head], as KvType has it.
#pragma once

#include <cstdint>

#include "arena.h"
#include "kernels.h"
#include "model.h"

namespace edge {

class KvCache {
  public:
    // Takes its memory from the arena, which outlives it. Throws std::invalid_argument where the arena has it not.
    KvCache(const ModelConfig& config, const Kernels& kernels, KvType type, uint32_t blocks, Arena& arena);

    KvType type() const { return type_; }
    size_t block_bytes() const { return block_; }
    uint8_t* block(uint32_t block) const { return at_ + block * block_; }
    // Where a layer's KV head lies in block 0.
    const uint8_t* head(uint32_t layer, uint32_t head) const { return at_ + layer * layer_ + head * head_; }
    // Has the system give the block's pages now. On any thread, also while others are used.
    void populate(uint32_t block) const { arena_.populate(this->block(block), block_); }

    // A token's keys or values [row0, row1) of a layer, at `from`; multiples of 16. The token is `offset` in `block`.
    void store(const float* from, uint32_t layer, uint32_t block, uint32_t offset, uint32_t row0, uint32_t row1,
               bool values) const;

  private:
    void store_f16(const float* from, uint16_t* head, uint32_t first, uint32_t offset, bool values) const;
    void store_i8(const float* from, uint8_t* head, uint32_t first, uint32_t offset, bool values) const;

    const Kernels& kernels_;
    const Arena& arena_;
    const KvType type_;
    const uint32_t dim_;  // of a head
    const size_t head_;   // bytes of one KV head's 16 keys and values
    const size_t layer_;  // of one layer of a block
    const size_t block_;  // of a block
    uint8_t* at_;
};

}  // namespace edge
