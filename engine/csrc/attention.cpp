#include "attention.h"

#include <algorithm>

namespace edge {

Attention::Attention(const ModelConfig& config, const Kernels& kernels, const Batch& batch, const KvCache& kv,
                     uint32_t step_tokens, Arena& arena)
    : config_(config),
      kernels_(kernels),
      batch_(batch),
      kv_(kv),
      group_(config.heads / config.kv_heads),
      q_(arena.take<float>("queries", size_t{step_tokens} * config.q_dim())),
      parts_(arena.take<float>("parts of attention", size_t{batch.few()} * config.heads * batch.most_parts() *
                                                         part_floats(config.head_dim))) {}

Attend Attention::args(const Batch::Unit& unit, uint32_t layer, uint32_t head, uint32_t from, float* scratch) const {
    const Batch::Token& first = batch_.tokens()[unit.token];
    return {.q = queries(unit.token) + (head * group_ + from) * config_.head_dim,
            .q_stride = config_.q_dim(),
            .queries = unit.queries,
            .first = first.position,
            .group = std::min(kMaxGroup, group_ - from),
            .head_dim = config_.head_dim,
            .kv = kv_.head(layer, head),
            .block_stride = kv_.block_bytes(),
            .type = kv_.type(),
            .blocks = first.blocks,
            .scratch = scratch};
}

void Attention::chunk(const Batch::Chunk& chunk, uint32_t layer, float* out, float* scratch) const {
    for (uint32_t u = chunk.unit; u < chunk.unit_end; ++u) {
        const Batch::Unit& unit = batch_.units()[u];
        float* rows = out + size_t{unit.token - chunk.token} * config_.q_dim();
        for (uint32_t head = 0; head < config_.kv_heads; ++head)
            for (uint32_t from = 0; from < group_; from += kMaxGroup)
                kernels_.attend(args(unit, layer, head, from, scratch),
                                rows + (head * group_ + from) * config_.head_dim, config_.q_dim());
    }
}

void Attention::item(const Batch::Item& item, uint32_t layer, float* scratch) const {
    const Batch::Unit& unit = batch_.units()[item.unit];
    const size_t size = part_floats(config_.head_dim), head_size = batch_.most_parts() * size;
    const uint32_t head = item.head * group_ + item.from;
    float* out = parts_ + (size_t{unit.token} * config_.heads + head) * head_size + item.part * size;
    kernels_.attend_part(args(unit, layer, item.head, item.from, scratch), item.part, out, config_.heads * head_size,
                         head_size);
}

void Attention::join(const Batch::Chunk& chunk, float* out) const {
    const size_t head_size = batch_.most_parts() * part_floats(config_.head_dim);
    for (uint32_t t = 0; t < chunk.count; ++t)
        for (uint32_t head = 0; head < config_.heads; ++head)
            kernels_.join_parts(parts_ + (size_t{t} * config_.heads + head) * head_size,
                                batch_.tokens()[chunk.token + t].position / kPartKeys + 1, config_.head_dim,
                                out + size_t{t} * config_.q_dim() + head * config_.head_dim);
}

}  // namespace edge
