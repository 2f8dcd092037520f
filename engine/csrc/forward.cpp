#include "forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edge {
namespace {

constexpr uint32_t kMostRows = 64;  // output rows of one piece of work
constexpr uint32_t kLineFloats = 16;

size_t scratch_floats(const ModelConfig& config) {
    const uint32_t cols = std::max({config.hidden, config.q_dim(), config.ffn});
    return std::max(size_t{kPanelRows} * cols, attend_scratch(config.head_dim)) + kLineFloats;
}

}  // namespace

Forward::Forward(const Model& model, const Kernels& kernels, const Limits& limits, Team& team)
    : model_(model),
      kernels_(kernels),
      team_(team),
      slots_(limits.slots),
      kv_head_(size_t{2} * kBlockTokens * model.config.head_dim),
      kv_layer_(kv_head_ * model.config.kv_heads),
      kv_block_(kv_layer_ * model.config.layers),
      kv_(kv_block_ * limits.blocks),
      scratch_each_((scratch_floats(model.config) + kLineFloats - 1) / kLineFloats * kLineFloats) {
    const ModelConfig& config = model.config;
    const size_t tokens = limits.step_tokens;
    x_ = Buffer<float>(tokens * config.hidden);
    normed_ = Buffer<float>(tokens * config.hidden);
    q_ = Buffer<float>(tokens * config.q_dim());
    kv_rows_ = Buffer<float>(tokens * 2 * config.kv_dim());
    attended_ = Buffer<float>(tokens * config.q_dim());
    gate_ = Buffer<float>(tokens * config.ffn);
    up_ = Buffer<float>(tokens * config.ffn);
    delta_ = Buffer<float>(tokens * config.hidden);
    angles_ = Buffer<float>(tokens * config.head_dim);
    const size_t most_draws = std::min<size_t>(limits.slots, tokens);
    drawn_ = Buffer<float>(most_draws * config.vocab);
    logits_ = Buffer<float>(size_t{limits.slots} * config.vocab);
    scratch_ = Buffer<float>(team.members() * scratch_each_);
    for (uint32_t i = 0; i < team.members(); ++i) samplers_.emplace_back(config.vocab);
    for (uint32_t i = 0; i < config.head_dim; i += 2)
        frequencies_.push_back(std::pow(config.rope_theta, -static_cast<double>(i) / config.head_dim));
    tokens_.reserve(tokens);
    units_.reserve(tokens);
    draws_.reserve(most_draws);
}

bool Forward::prepare(Job& job) {
    job_ = &job;
    tokens_.clear();
    units_.clear();
    draws_.clear();
    for (uint32_t i = 0; i < job.rows.size(); ++i) {
        const Job::Row& row = job.rows[i];
        Slot& slot = slots_[row.slot];
        if (row.opens) slot = {row.sampling, 0, false, false};
        if (slot.finished) continue;
        place(job, row);
        if (row.sample) draws_.push_back({static_cast<uint32_t>(tokens_.size() - 1), row.start + row.count, i});
    }
    return !tokens_.empty();
}

void Forward::place(const Job& job, const Job::Row& row) {
    const uint32_t* blocks = job.blocks.data() + row.first_block;
    for (uint32_t i = 0; i < row.count; i += kMaxQueries)
        units_.push_back(
            {static_cast<uint32_t>(tokens_.size()) + i, std::min(kMaxQueries, row.count - i), row.start + i, blocks});
    for (uint32_t i = 0; i < row.count; ++i) {
        const uint32_t id = row.decode ? slots_[row.slot].last : job.tokens[row.first_token + i];
        tokens_.push_back({id, row.start + i, blocks[(row.start + i) / kBlockTokens]});
    }
}

// Past the last barrier member 0 may already prepare the next batch: nothing of this one may be read there.
void Forward::run(uint32_t member) {
    float* scratch = scratch_.data() + member * scratch_each_;
    const auto draws = static_cast<uint32_t>(draws_.size());
    team_.each(static_cast<uint32_t>(tokens_.size()), [&](uint32_t token) { embed(token); });
    for (uint32_t i = 0; i < model_.layers.size(); ++i) layer(i, scratch);
    if (draws == 0) return;
    head(scratch);
    team_.each(draws, [&](uint32_t i) { draw(i, member); });
}

void Forward::embed(uint32_t token) {
    const ModelConfig& config = model_.config;
    kernels_.dequantise(model_.embedding, tokens_[token].id, x_.data() + size_t{token} * config.hidden);
    float* cosines = angles_.data() + size_t{token} * config.head_dim;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
        const double angle = tokens_[token].position * frequencies_[i];
        cosines[i] = static_cast<float>(std::cos(angle));
        cosines[frequencies_.size() + i] = static_cast<float>(std::sin(angle));
    }
}

void Forward::layer(uint32_t index, float* scratch) {
    const ModelConfig& config = model_.config;
    const Layer& weights = model_.layers[index];
    const auto tokens = static_cast<uint32_t>(tokens_.size());
    const auto norm = [&](const float* weight) {
        team_.each(tokens, [&](uint32_t token) {
            const size_t at = size_t{token} * config.hidden;
            kernels_.rms_norm(x_.data() + at, weight, config.hidden, config.rms_eps, normed_.data() + at);
        });
    };
    norm(weights.attn_norm);
    team_.each(config.heads + 2 * config.kv_heads, [&](uint32_t head) { project_head(weights, index, head, scratch); });
    // The last units see the most keys: they go first, so that none is left alone at the end.
    const auto items = static_cast<uint32_t>(units_.size()) * config.kv_heads;
    team_.each(items, [&](uint32_t item) { attention(index, items - 1 - item, scratch); });
    split(config.hidden,
          [&](uint32_t from, uint32_t to) { add(weights.attn_output, attended_.data(), from, to, scratch); });
    norm(weights.ffn_norm);
    split(config.ffn, [&](uint32_t from, uint32_t to) { feed(weights, from, to, scratch); });
    split(config.hidden, [&](uint32_t from, uint32_t to) { add(weights.down, gate_.data(), from, to, scratch); });
}

// Work on output rows [from, to), in pieces that are large where there are many rows and small where many threads wait.
template <class F>
void Forward::split(uint32_t rows, F&& fn) {
    const uint32_t share = (rows / (4 * team_.members()) + kLineFloats - 1) / kLineFloats * kLineFloats;
    const uint32_t step = std::clamp(share, kLineFloats, kMostRows);
    team_.each((rows + step - 1) / step, [&](uint32_t i) { fn(i * step, std::min(rows, (i + 1) * step)); });
}

// Head `head` of queries, then keys, then values, for all tokens; rotated, and keys and values put into their blocks.
void Forward::project_head(const Layer& layer, uint32_t index, uint32_t head, float* scratch) {
    const ModelConfig& config = model_.config;
    const uint32_t dim = config.head_dim;
    const bool query = head < config.heads;
    const bool value = head >= config.heads + config.kv_heads;
    const uint32_t local = query ? head : (head - config.heads) % config.kv_heads;
    const Matrix& weights = query ? layer.q : value ? layer.v : layer.k;
    const size_t stride = query ? config.q_dim() : 2 * config.kv_dim();
    float* out = query ? q_.data() : kv_rows_.data() + (value ? config.kv_dim() : 0);
    kernels_.matmul(weights, local * dim, (local + 1) * dim, normed_.data(), config.hidden,
                    static_cast<uint32_t>(tokens_.size()), out, stride, scratch);
    if (!value) rotate(out + local * dim, stride);
    if (!query) store(index, local, out + local * dim, value);
}

// RoPE (Su et al., arXiv:2104.09864) on one head of each token; a pair is (2i, 2i + 1), as GGUF orders llama's rows.
void Forward::rotate(float* heads, size_t stride) const {
    const size_t pairs = frequencies_.size();
    for (size_t token = 0; token < tokens_.size(); ++token) {
        const float* cosines = angles_.data() + token * 2 * pairs;
        const float* sines = cosines + pairs;
        float* x = heads + token * stride;
        for (size_t i = 0; i < pairs; ++i) {
            const float even = x[2 * i], odd = x[2 * i + 1];
            x[2 * i] = even * cosines[i] - odd * sines[i];
            x[2 * i + 1] = even * sines[i] + odd * cosines[i];
        }
    }
}

void Forward::store(uint32_t layer, uint32_t head, const float* heads, bool values) {
    const uint32_t dim = model_.config.head_dim;
    const size_t stride = 2 * model_.config.kv_dim();
    uint16_t narrow[kMaxHeadDim];
    for (size_t token = 0; token < tokens_.size(); ++token) {
        const Token& at = tokens_[token];
        const uint32_t offset = at.position % kBlockTokens;
        uint16_t* keys = kv_.data() + at.block * kv_block_ + layer * kv_layer_ + head * kv_head_;
        if (values) {
            kernels_.to_f16(heads + token * stride, keys + size_t{kBlockTokens + offset} * dim, dim);
            continue;
        }
        kernels_.to_f16(heads + token * stride, narrow, dim);
        for (uint32_t d = 0; d < dim; ++d) keys[d * kBlockTokens + offset] = narrow[d];
    }
}

void Forward::attention(uint32_t layer, uint32_t item, float* scratch) {
    const ModelConfig& config = model_.config;
    const Unit& unit = units_[item / config.kv_heads];
    const uint32_t head = item % config.kv_heads;
    const uint32_t group = config.heads / config.kv_heads;
    const size_t at = size_t{unit.token} * config.q_dim() + head * group * config.head_dim;
    kernels_.attend({.q = q_.data() + at,
                     .q_stride = config.q_dim(),
                     .out = attended_.data() + at,
                     .out_stride = config.q_dim(),
                     .queries = unit.queries,
                     .first = unit.position,
                     .group = group,
                     .head_dim = config.head_dim,
                     .kv = kv_.data() + layer * kv_layer_ + head * kv_head_,
                     .block_stride = kv_block_,
                     .blocks = unit.blocks,
                     .scratch = scratch});
}

// x += weights * input, for output rows [row0, row1).
void Forward::add(const Matrix& weights, const float* input, uint32_t row0, uint32_t row1, float* scratch) {
    const size_t hidden = model_.config.hidden;
    kernels_.matmul(weights, row0, row1, input, weights.cols, static_cast<uint32_t>(tokens_.size()), delta_.data(),
                    hidden, scratch);
    for (size_t token = 0; token < tokens_.size(); ++token)
        for (size_t i = token * hidden + row0; i < token * hidden + row1; ++i) x_.data()[i] += delta_.data()[i];
}

// SwiGLU (Shazeer, arXiv:2002.05202) up to its product, for rows [row0, row1) of gate and up.
void Forward::feed(const Layer& layer, uint32_t row0, uint32_t row1, float* scratch) {
    const size_t hidden = model_.config.hidden, ffn = model_.config.ffn;
    const auto tokens = static_cast<uint32_t>(tokens_.size());
    kernels_.matmul(layer.gate, row0, row1, normed_.data(), hidden, tokens, gate_.data(), ffn, scratch);
    kernels_.matmul(layer.up, row0, row1, normed_.data(), hidden, tokens, up_.data(), ffn, scratch);
    for (size_t token = 0; token < tokens; ++token)
        kernels_.silu_mul(gate_.data() + token * ffn + row0, up_.data() + token * ffn + row0, row1 - row0);
}

void Forward::head(float* scratch) {
    const ModelConfig& config = model_.config;
    const auto draws = static_cast<uint32_t>(draws_.size());
    team_.each(draws, [&](uint32_t i) {
        kernels_.rms_norm(x_.data() + size_t{draws_[i].token} * config.hidden, model_.output_norm, config.hidden,
                          config.rms_eps, normed_.data() + size_t{i} * config.hidden);
    });
    split(config.vocab, [&](uint32_t from, uint32_t to) {
        kernels_.matmul(model_.head, from, to, normed_.data(), config.hidden, draws, drawn_.data(), config.vocab,
                        scratch);
    });
}

void Forward::draw(uint32_t index, uint32_t member) {
    const uint32_t vocab = model_.config.vocab;
    const Draw& wanted = draws_[index];
    Job::Outcome& outcome = job_->outcomes[wanted.row];
    Slot& slot = slots_[outcome.slot];
    float* logits = logits_.data() + size_t{outcome.slot} * vocab;
    std::memcpy(logits, drawn_.data() + size_t{index} * vocab, vocab * sizeof(float));
    slot.has_logits = true;
    const auto token = samplers_[member](kernels_, logits, slot.sampling, wanted.position);
    if (!token) {
        slot.finished = true;
        outcome.finish = Finish::error;
        return;
    }
    slot.last = outcome.token = *token;
    outcome.sampled = true;
    slot.finished = slot.sampling.stops(*token);
    if (slot.finished) outcome.finish = Finish::stop;
}

}  // namespace edge
