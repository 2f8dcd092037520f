#include "kv_cache.h"

namespace edge {

KvCache::KvCache(const ModelConfig& config, const Kernels& kernels, KvType type, uint32_t blocks, Arena& arena)
    : kernels_(kernels),
      arena_(arena),
      type_(type),
      dim_(config.head_dim),
      head_(kv_head_bytes(type, config.head_dim)),
      layer_(head_ * config.kv_heads),
      block_(layer_ * config.layers),
      at_(arena.take<uint8_t>("kv", block_ * blocks)) {}

void KvCache::store(const float* from, uint32_t layer, uint32_t block, uint32_t offset, uint32_t row0, uint32_t row1,
                    bool values) const {
    uint8_t* heads = this->block(block) + layer * layer_;
    for (uint32_t r = row0; r < row1; r += kTileRows, from += kTileRows) {
        uint8_t* head = heads + r / dim_ * head_;
        if (type_ == KvType::f16)
            store_f16(from, reinterpret_cast<uint16_t*>(head), r % dim_, offset, values);
        else
            store_i8(from, head, r % dim_, offset, values);
    }
}

// 16 values of a token, from dimension `first` of its head on.
void KvCache::store_f16(const float* from, uint16_t* head, uint32_t first, uint32_t offset, bool values) const {
    if (values) return kernels_.to_f16(from, head + size_t{kBlockTokens + offset} * dim_ + first, kTileRows);
    uint16_t narrow[kTileRows];
    kernels_.to_f16(from, narrow, kTileRows);
    for (uint32_t i = 0; i < kTileRows; ++i) head[(first + i) * kBlockTokens + offset] = narrow[i];
}

void KvCache::store_i8(const float* from, uint8_t* head, uint32_t first, uint32_t offset, bool values) const {
    static_assert(kTileRows == kKvGroup);
    const uint32_t size = kBlockTokens * dim_;
    auto* levels = reinterpret_cast<int8_t*>(head) + (values ? size : 0);
    auto* scale = reinterpret_cast<uint16_t*>(head + size_t{2} * size) + (values ? dim_ : 0) + first + offset;
    if (values) return kernels_.to_i8(from, levels + offset * dim_ + first, scale);
    int8_t narrow[kKvGroup];
    kernels_.to_i8(from, narrow, scale);
    for (uint32_t i = 0; i < kKvGroup; ++i) levels[(first + i) * kBlockTokens + offset] = narrow[i];
}

}  // namespace edge
