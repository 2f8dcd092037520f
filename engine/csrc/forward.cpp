#include "forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edge {
namespace {

uint32_t tiles(const Matrix& matrix) { return (matrix.rows + kTileRows - 1) / kTileRows; }

// Where a row's tile begins; null if the matrix is not packed.
const uint8_t* row_start(const Matrix& matrix, uint32_t row) {
    return is_packed(matrix.dtype) ? matrix.data + row / kTileRows * tile_bytes(matrix.dtype, matrix.cols) : nullptr;
}

}  // namespace

Forward::Forward(const Model& model, const Kernels& kernels, const Limits& limits, Team& team, Arena& arena,
                 bool low_bytes, KvType kv_type)
    : model_(model),
      kernels_(kernels),
      team_(team),
      arena_(arena),
      slots_(limits.slots),
      masks_(limits.slots, model.config.vocab,
             arena.take<uint32_t>("allowed tokens", size_t{limits.slots} * mask_words(model.config.vocab))),
      batch_(model.config, limits, team.members()),
      kv_(model.config, kernels, kv_type, limits.blocks, arena),
      attention_(model.config, kernels, batch_, kv_, limits.step_tokens, arena) {
    const ModelConfig& config = model.config;
    const size_t tokens = limits.step_tokens;
    x_ = arena.take<float>("residual", tokens * config.hidden);
    angles_ = arena.take<float>("angles", tokens * 2 * config.head_dim);
    logits_ = arena.take<float>("last logits", size_t{limits.slots} * config.vocab);
    workspaces_.reserve(team.members());
    samplers_.reserve(team.members());
    for (uint32_t i = 0; i < team.members(); ++i) {
        workspaces_.emplace_back(config, batch_.span(), low_bytes, arena, i);
        samplers_.push_back(Sampler(config.vocab, {arena.take<double>("probabilities", config.vocab, i),
                                                   arena.take<uint32_t>("candidates", config.vocab, i),
                                                   arena.take<float>("adjusted logits", config.vocab, i)}));
    }
    for (uint32_t i = 0; i < config.head_dim; i += 2)
        frequencies_.push_back(std::pow(config.rope_theta, -static_cast<double>(i) / config.head_dim));
    const size_t different = std::min(limits.context, config.vocab);
    auto* words = arena.take<uint32_t>("tokens seen", limits.slots * (config.vocab + different));
    for (Slot& slot : slots_) {
        slot.seen = Seen(words, words + config.vocab);
        words += config.vocab + different;
    }
    arena.expect_all_taken();
}

void Forward::release() {
    for (Slot& slot : slots_) {
        slot.has_logits = false;
        slot.seen.clear();
    }
    arena_.release();
}

bool Forward::prepare(Job& job) {
    job_ = &job;
    batch_.clear();
    for (uint32_t i = 0; i < job.rows.size(); ++i) {
        const Job::Row& row = job.rows[i];
        Slot& slot = slots_[row.slot];
        if (row.opens) open(slot, job, row);
        if (!slot.finished) batch_.add(job, i, slot.last);
    }
    return batch_.divide();
}

void Forward::open(Slot& slot, const Job& job, const Job::Row& row) {
    slot.sampling = *row.opens;
    slot.last = 0;
    slot.finished = slot.has_logits = false;
    slot.seen.clear();
    for (uint32_t i = 0; i < row.history; ++i) {
        const uint32_t id = job.histories[row.first_history + i];
        if (i < slot.sampling.first)
            slot.seen.add_prompt(id);
        else
            slot.seen.add_sampled(id);
    }
}

// Past the last barrier member 0 may already prepare the next batch: nothing of this one may be read there.
void Forward::run(uint32_t member) {
    const auto draws = static_cast<uint32_t>(batch_.draws().size());
    if (batch_.by_outputs())
        run_by_outputs(member);
    else
        run_by_tokens(member);
    if (draws == 0) return;
    head(member);
    team_.each(draws, [&](uint32_t i) { draw(i, member); });
}

void Forward::run_by_outputs(uint32_t member) {
    Workspace& own = workspaces_[member];
    const std::vector<Batch::Item>& items = batch_.items();
    const Slice slice{batch_.chunks()[0], member, team_.members(), own, workspaces_[0]};
    team_.each(slice.chunk.count, [&](uint32_t token) { embed(token); });
    for (uint32_t layer = 0; layer < model_.layers.size(); ++layer) {
        project(slice, layer);
        team_.barrier();
        team_.each(static_cast<uint32_t>(items.size()),
                   [&](uint32_t i) { attention_.item(items[i], layer, own.scratch); });
        attention_.join(slice.chunk, own.rows);
        finish_layer(slice, layer);
        team_.barrier();
    }
}

// A round takes each chunk from where its tokens attend to where they have written the next layer's keys and values.
void Forward::run_by_tokens(uint32_t member) {
    Workspace& own = workspaces_[member];
    const auto layers = static_cast<uint32_t>(model_.layers.size());
    const auto chunks = static_cast<uint32_t>(batch_.chunks().size());
    for (uint32_t round = 0; round <= layers; ++round)
        team_.each(chunks, [&](uint32_t i) {
            // The last tokens see the most keys: they go first, so that none is left alone at the end.
            const Slice slice{batch_.chunks()[chunks - 1 - i], 0, 1, own, own};
            if (round == 0) {
                for (uint32_t t = 0; t < slice.chunk.count; ++t) embed(slice.chunk.token + t);
            } else {
                if (round == layers && !slice.chunk.drawn) return;  // only the KV of these was wanted
                attention_.chunk(slice.chunk, round - 1, own.rows, own.scratch);
                finish_layer(slice, round - 1);
            }
            if (round < layers) project(slice, round);
        });
}

// Where the member's outputs of a matrix begin.
const uint8_t* Forward::start(const Matrix& weights, const Slice& slice) {
    return row_start(weights, share(tiles(weights), slice.member, slice.members).from * kTileRows);
}

void Forward::meet(const Slice& slice) const {
    if (slice.members > 1) team_.barrier();
}

void Forward::embed(uint32_t token) {
    const ModelConfig& config = model_.config;
    kernels_.dequantise(model_.embedding, batch_.tokens()[token].id, x_ + size_t{token} * config.hidden);
    float* cosines = angles_ + size_t{token} * 2 * config.head_dim;
    float* sines = cosines + config.head_dim;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
        const double angle = batch_.tokens()[token].position * frequencies_[i];
        cosines[2 * i] = cosines[2 * i + 1] = static_cast<float>(std::cos(angle));
        sines[2 * i + 1] = static_cast<float>(std::sin(angle));
        sines[2 * i] = -sines[2 * i + 1];
    }
}

Forward::Input Forward::normed(const Slice& slice, const float* weight, bool packed) const {
    const ModelConfig& config = model_.config;
    const uint32_t count = slice.chunk.count;
    for (uint32_t t = 0; t < count; ++t) {
        float* row = slice.own.rows + size_t{t} * config.hidden;
        kernels_.rms_norm(x_ + size_t{slice.chunk.token + t} * config.hidden, weight, config.hidden, config.rms_eps,
                          row);
        if (packed) kernels_.quantise(row, 0, config.hidden / kBlockWeights, config.hidden, t, count, slice.own.in);
    }
    return {slice.own.rows, config.hidden, slice.own.in};
}

// out = weights * input, for output rows [row0, row1) of `tokens` tokens; row0 is a multiple of 16.
void Forward::product(const Matrix& weights, uint32_t row0, uint32_t row1, const Input& in, uint32_t tokens,
                      const Output& out, Workspace& own, const uint8_t* next) const {
    if (row0 >= row1) return;
    if (is_packed(weights.dtype)) return kernels_.packed_matmul(weights, row0, row1, in.quantised, tokens, out, next);
    for (uint32_t r = row0; r < row1; r += kPanelRows) {
        const uint32_t count = std::min(kPanelRows, row1 - r);
        kernels_.matmul(weights, r, r + count, in.rows, in.stride, tokens, own.piece, kPanelRows, own.scratch);
        for (uint32_t t = 0; t < tokens; ++t) {
            const float* from = own.piece + size_t{t} * kPanelRows;
            float* to = out.at + (out.index ? out.index[t] : t) * out.stride + (r - row0);
            for (uint32_t i = 0; i < count; ++i) to[i] = out.add ? to[i] + from[i] : from[i];
        }
    }
}

// Queries, keys and values of a layer: rotated, and keys and values put into their blocks.
void Forward::project(const Slice& slice, uint32_t index) {
    const ModelConfig& config = model_.config;
    const Layer& layer = model_.layers[index];
    const bool packed = is_packed(layer.q.dtype) || is_packed(layer.k.dtype) || is_packed(layer.v.dtype);
    const Input in = normed(slice, layer.attn_norm, packed);
    const Matrix* matrices[] = {&layer.q, &layer.k, &layer.v};
    const Range own = share(tiles(layer.q) + tiles(layer.k) + tiles(layer.v), slice.member, slice.members);
    uint32_t first = 0;
    for (uint32_t i = 0; i < 3; ++i) {
        const uint32_t count = tiles(*matrices[i]);
        const uint32_t row0 = (std::clamp(own.from, first, first + count) - first) * kTileRows;
        const uint32_t row1 = (std::clamp(own.to, first, first + count) - first) * kTileRows;
        first += count;
        if (row0 == row1) continue;
        const size_t stride = i == 0 ? config.q_dim() : 2 * config.kv_dim();
        float* rows = i == 0 ? attention_.queries(slice.chunk.token) : slice.own.kv + (i - 1) * config.kv_dim();
        rows += row0;
        const uint8_t* next = i < 2 && own.to > first ? matrices[i + 1]->data : start(layer.attn_output, slice);
        product(*matrices[i], row0, row1, in, slice.chunk.count, {rows, stride, nullptr, false}, slice.own, next);
        if (i < 2) rotate(slice, rows, stride, row0, row1);
        if (i > 0) store(slice, index, rows, row0, row1, i == 2);
    }
}

// RoPE (Su et al., arXiv:2104.09864) on outputs [row0, row1) of the chunk's tokens, which begin at `rows`; a pair is
// (2i, 2i + 1), as GGUF orders llama's rows.
void Forward::rotate(const Slice& slice, float* rows, size_t stride, uint32_t row0, uint32_t row1) const {
    const uint32_t dim = model_.config.head_dim;
    for (uint32_t t = 0; t < slice.chunk.count; ++t) {
        const float* cosines = angles_ + size_t{slice.chunk.token + t} * 2 * dim;
        for (uint32_t r = row0, end; r < row1; r = end) {
            end = std::min(row1, (r / dim + 1) * dim);
            kernels_.rotate(rows + t * stride + (r - row0), cosines + r % dim, cosines + dim + r % dim, end - r);
        }
    }
}

void Forward::store(const Slice& slice, uint32_t layer, const float* rows, uint32_t row0, uint32_t row1,
                    bool values) const {
    const size_t stride = 2 * model_.config.kv_dim();
    for (uint32_t t = 0; t < slice.chunk.count; ++t) {
        const Batch::Token& token = batch_.tokens()[slice.chunk.token + t];
        kv_.store(rows + t * stride, layer, token.block, token.position % kBlockTokens, row0, row1, values);
    }
}

// From what attention gave, in own.rows, to the layer's end.
void Forward::finish_layer(const Slice& slice, uint32_t index) {
    const ModelConfig& config = model_.config;
    const Layer& layer = model_.layers[index];
    const uint32_t count = slice.chunk.count, q_dim = config.q_dim();
    float* x = x_ + size_t{slice.chunk.token} * config.hidden;
    const auto add = [&](const Matrix& weights, const Input& in, const uint8_t* next) {
        const Range own = share(tiles(weights), slice.member, slice.members);
        product(weights, own.from * kTileRows, std::min(own.to * kTileRows, weights.rows), in, count,
                {x + own.from * kTileRows, config.hidden, nullptr, true}, slice.own, next);
    };
    if (is_packed(layer.attn_output.dtype))
        for (uint32_t t = 0; t < count; ++t)
            kernels_.quantise(slice.own.rows + size_t{t} * q_dim, 0, q_dim / kBlockWeights, q_dim, t, count,
                              slice.own.in);
    add(layer.attn_output, {slice.own.rows, q_dim, slice.own.in}, start(layer.gate, slice));
    meet(slice);
    feed(slice, layer);
    meet(slice);
    const Matrix& next = index + 1 < model_.layers.size() ? model_.layers[index + 1].q : model_.head;
    add(layer.down, {slice.common.mixed, config.ffn, slice.common.middle}, start(next, slice));
}

// SwiGLU (Shazeer, arXiv:2002.05202) up to its product, in pieces of gate and up that fill whole blocks.
void Forward::feed(const Slice& slice, const Layer& layer) const {
    const uint32_t ffn = model_.config.ffn, count = slice.chunk.count;
    const Input in = normed(slice, layer.ffn_norm, is_packed(layer.gate.dtype) || is_packed(layer.up.dtype));
    const bool packed = is_packed(layer.down.dtype);
    const Range own = share(ffn / kBlockWeights, slice.member, slice.members);
    for (uint32_t block = own.from; block < own.to; ++block) {
        const uint32_t row = block * kBlockWeights;
        const auto run = [&](const Matrix& weights, float* out, const uint8_t* next) {
            product(weights, row, row + kBlockWeights, in, count, {out, kBlockWeights, nullptr, false}, slice.own,
                    next);
        };
        run(layer.gate, slice.own.gate, row_start(layer.up, row));
        run(layer.up, slice.own.up,
            block + 1 < own.to ? row_start(layer.gate, row + kBlockWeights) : start(layer.down, slice));
        for (uint32_t t = 0; t < count; ++t) {
            float* gate = slice.own.gate + size_t{t} * kBlockWeights;
            kernels_.silu_mul(gate, slice.own.up + size_t{t} * kBlockWeights, kBlockWeights);
            if (packed)
                kernels_.quantise(gate, block, 1, ffn, t, count, slice.common.middle);
            else
                std::memcpy(slice.common.mixed + size_t{t} * ffn + row, gate, kBlockWeights * sizeof(float));
        }
    }
}

// The logits of all draws; members divide the vocabulary.
void Forward::head(uint32_t member) {
    const ModelConfig& config = model_.config;
    Workspace& own = workspaces_[member];
    const Range tile = share(tiles(model_.head), member, team_.members());
    const uint32_t row0 = tile.from * kTileRows, row1 = std::min(tile.to * kTileRows, config.vocab);
    const std::vector<Batch::Draw>& draws = batch_.draws();
    const auto all = static_cast<uint32_t>(draws.size());
    for (uint32_t first = 0; first < all; first += batch_.span()) {
        const uint32_t count = std::min(batch_.span(), all - first);
        for (uint32_t i = 0; i < count; ++i) {
            float* row = own.rows + size_t{i} * config.hidden;
            kernels_.rms_norm(x_ + size_t{draws[first + i].token} * config.hidden, model_.output_norm, config.hidden,
                              config.rms_eps, row);
            kernels_.quantise(row, 0, config.hidden / kBlockWeights, config.hidden, i, count, own.in);
        }
        product(model_.head, row0, row1, {own.rows, config.hidden, own.in}, count,
                {logits_ + row0, config.vocab, batch_.draw_slots() + first, false}, own, nullptr);
    }
    team_.barrier();
}

void Forward::draw(uint32_t index, uint32_t member) {
    const Batch::Draw& wanted = batch_.draws()[index];
    Job::Outcome& outcome = job_->outcomes[wanted.row];
    Slot& slot = slots_[outcome.slot];
    slot.has_logits = true;
    const uint32_t* allowed = slot.sampling.constrained ? masks_.await(outcome.slot, job_->step) : nullptr;
    Sampler& sampler = samplers_[member];
    const auto token = sampler(kernels_, logits(outcome.slot), slot.sampling, slot.seen, wanted.position, allowed);
    if (!token) {
        slot.finished = true;
        outcome.finish = Finish::error;
        return;
    }
    slot.last = outcome.token = *token;
    outcome.sampled = true;
    if (slot.sampling.penalises()) slot.seen.add_sampled(*token);
    outcome.told = slot.sampling.logprobs;
    if (outcome.told)
        outcome.logprobs = sampler.logprobs(kernels_, logits(outcome.slot), *token, slot.sampling.top_logprobs);
    slot.finished = slot.sampling.stops(*token);
    if (slot.finished) outcome.finish = Finish::stop;
}

}  // namespace edge
