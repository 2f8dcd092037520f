#include "workspace.h"

#include <algorithm>
#include <string>

namespace edge {
namespace {

size_t aligned(size_t nbytes) { return (nbytes + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign; }

// Levels, the low bytes behind the high ones, then three numbers a block.
Quantised take_quantised(Arena& arena, const std::string& name, uint32_t tokens, uint32_t cols, bool low_bytes,
                         uint32_t member) {
    const size_t blocks = size_t{tokens} * (cols / kBlockWeights), numbers = aligned(blocks * sizeof(float));
    const size_t bytes = aligned(blocks * kBlockWeights), levels = low_bytes ? 2 * bytes : bytes;
    auto* at = arena.take<uint8_t>(name, levels + 3 * numbers, member);
    auto* high = reinterpret_cast<int8_t*>(at);
    const auto number = [&](size_t index) { return at + levels + index * numbers; };
    return {high, low_bytes ? high + bytes : nullptr, reinterpret_cast<float*>(number(0)),
            reinterpret_cast<float*>(number(1)), reinterpret_cast<int32_t*>(number(2))};
}

size_t scratch_floats(const ModelConfig& config) {
    const uint32_t cols = std::max({config.hidden, config.q_dim(), config.ffn});
    return std::max(size_t{kPanelRows} * cols, attend_scratch(config.head_dim));
}

}  // namespace

Workspace::Workspace(const ModelConfig& config, uint32_t span, bool low_bytes, Arena& arena, uint32_t member) {
    const uint32_t wide = std::max(config.hidden, config.q_dim());
    rows = arena.take<float>("rows", size_t{span} * wide, member);
    kv = arena.take<float>("keys and values", size_t{span} * 2 * config.kv_dim(), member);
    gate = arena.take<float>("gate", size_t{span} * kBlockWeights, member);
    up = arena.take<float>("up", size_t{span} * kBlockWeights, member);
    piece = arena.take<float>("panel", size_t{span} * kPanelRows, member);
    mixed = arena.take<float>("ffn", size_t{span} * config.ffn, member);
    in = take_quantised(arena, "quantised rows", span, wide, low_bytes, member);
    middle = take_quantised(arena, "quantised ffn", span, config.ffn, low_bytes, member);
    scratch = arena.take<float>("scratch", scratch_floats(config), member);
}

}  // namespace edge
