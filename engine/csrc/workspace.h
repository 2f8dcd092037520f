// What a member, or all of them together, needs for a chunk of tokens.
#pragma once

#include <cstdint>

#include "arena.h"
#include "kernels.h"
#include "model.h"

namespace edge {

// Rows of `span` tokens.
struct Workspace {
    // Takes its memory from the arena, which outlives it. low_bytes: activations have 16 bits before packed weights.
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

}  // namespace edge
