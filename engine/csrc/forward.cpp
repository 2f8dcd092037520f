#include "forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edge {
namespace {

constexpr uint32_t kMostChunk = 48;  // tokens
constexpr uint32_t kFewTokens = 16;  // and, of many members, a token tile for each
constexpr uint32_t kMemberTokens = 12;
constexpr size_t kAlign = 64;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// The share of `total` that belongs to `member`.
struct Range {
    uint32_t from, to;
};

Range share(uint32_t total, uint32_t member, uint32_t members) {
    return {static_cast<uint32_t>(uint64_t{total} * member / members),
            static_cast<uint32_t>(uint64_t{total} * (member + 1) / members)};
}

uint32_t tiles(const Matrix& matrix) { return ceil_div(matrix.rows, kTileRows); }

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

// Where a row's tile begins; null if the matrix is not packed.
const uint8_t* row_start(const Matrix& matrix, uint32_t row) {
    return is_packed(matrix.dtype) ? matrix.data + row / kTileRows * tile_bytes(matrix.dtype, matrix.cols) : nullptr;
}

}  // namespace

Forward::Workspace::Workspace(const ModelConfig& config, uint32_t span, bool low_bytes, Arena& arena, uint32_t member) {
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

Forward::Forward(const Model& model, const Kernels& kernels, const Limits& limits, Team& team, Arena& arena,
                 bool low_bytes, KvType kv_type)
    : model_(model),
      kernels_(kernels),
      team_(team),
      arena_(arena),
      few_(std::min(limits.step_tokens, std::max(kFewTokens, kMemberTokens * team.members()))),
      span_(std::min(limits.step_tokens, std::max(few_, kMostChunk))),
      most_parts_(ceil_div(limits.context, kPartKeys)),
      slots_(limits.slots),
      masks_(limits.slots, model.config.vocab,
             arena.take<uint32_t>("allowed tokens", size_t{limits.slots} * mask_words(model.config.vocab))),
      kv_type_(kv_type),
      kv_head_(kv_head_bytes(kv_type, model.config.head_dim)),
      kv_layer_(kv_head_ * model.config.kv_heads),
      kv_block_(kv_layer_ * model.config.layers),
      kv_(arena.take<uint8_t>("kv", kv_block_ * limits.blocks)) {
    const ModelConfig& config = model.config;
    const size_t tokens = limits.step_tokens;
    x_ = arena.take<float>("residual", tokens * config.hidden);
    q_ = arena.take<float>("queries", tokens * config.q_dim());
    angles_ = arena.take<float>("angles", tokens * 2 * config.head_dim);
    parts_ = arena.take<float>("parts of attention",
                               size_t{few_} * config.heads * most_parts_ * part_floats(config.head_dim));
    logits_ = arena.take<float>("last logits", size_t{limits.slots} * config.vocab);
    workspaces_.reserve(team.members());
    samplers_.reserve(team.members());
    for (uint32_t i = 0; i < team.members(); ++i) {
        workspaces_.emplace_back(config, span_, low_bytes, arena, i);
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
    const size_t most_draws = std::min<size_t>(limits.slots, tokens);
    tokens_.reserve(tokens);
    units_.reserve(tokens);
    chunks_.reserve(std::max(team.members(), ceil_div(limits.step_tokens, kMostChunk) + team.members()));
    items_.reserve(size_t{few_} * config.kv_heads * ceil_div(config.heads / config.kv_heads, kMaxGroup) * most_parts_);
    draws_.reserve(most_draws);
    draw_slots_.reserve(most_draws);
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
    tokens_.clear();
    draws_.clear();
    draw_slots_.clear();
    for (uint32_t i = 0; i < job.rows.size(); ++i) {
        const Job::Row& row = job.rows[i];
        Slot& slot = slots_[row.slot];
        if (row.opens) open(slot, job, row);
        if (slot.finished) continue;
        place(job, row);
        if (!row.sample) continue;
        draws_.push_back({static_cast<uint32_t>(tokens_.size() - 1), row.start + row.count, i});
        draw_slots_.push_back(row.slot);
    }
    const auto count = static_cast<uint32_t>(tokens_.size());
    if (count == 0) return false;
    // As many chunks as fill all members alike.
    const uint32_t members = team_.members();
    cut(count <= few_ ? 1 : std::min(count, ceil_div(ceil_div(count, kMostChunk), members) * members));
    if (count <= few_) list_items();
    return true;
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

void Forward::place(const Job& job, const Job::Row& row) {
    const uint32_t* blocks = job.blocks.data() + row.first_block;
    for (uint32_t i = 0; i < row.count; ++i) {
        const uint32_t id = row.decode ? slots_[row.slot].last : job.tokens[row.first_token + i];
        tokens_.push_back({id, row.start + i, blocks[(row.start + i) / kBlockTokens], blocks});
    }
}

void Forward::cut(uint32_t chunks) {
    units_.clear();
    chunks_.clear();
    uint32_t draw = 0;
    for (uint32_t i = 0; i < chunks; ++i) {
        const Range range = share(static_cast<uint32_t>(tokens_.size()), i, chunks);
        Chunk chunk{range.from, range.to - range.from, static_cast<uint32_t>(units_.size()), 0, false};
        for (uint32_t token = range.from; token < range.to; ++token) {
            const bool follows = units_.size() > chunk.unit && units_.back().queries < kMaxQueries &&
                                 tokens_[token - 1].blocks == tokens_[token].blocks;
            if (follows)
                ++units_.back().queries;
            else
                units_.push_back({token, 1});
        }
        chunk.unit_end = static_cast<uint32_t>(units_.size());
        while (draw < draws_.size() && draws_[draw].token < range.to) ++draw, chunk.drawn = true;
        chunks_.push_back(chunk);
    }
}

void Forward::list_items() {
    const uint32_t group = model_.config.heads / model_.config.kv_heads;
    items_.clear();
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
        const uint32_t last = tokens_[units_[unit].token].position + units_[unit].queries - 1;
        for (uint32_t part = 0; part <= last / kPartKeys; ++part)
            for (uint32_t head = 0; head < model_.config.kv_heads; ++head)
                for (uint32_t from = 0; from < group; from += kMaxGroup) items_.push_back({unit, head, from, part});
    }
}

// Past the last barrier member 0 may already prepare the next batch: nothing of this one may be read there.
void Forward::run(uint32_t member) {
    const auto draws = static_cast<uint32_t>(draws_.size());
    if (tokens_.size() <= few_)
        run_by_outputs(member);
    else
        run_by_tokens(member);
    if (draws == 0) return;
    head(member);
    team_.each(draws, [&](uint32_t i) { draw(i, member); });
}

void Forward::run_by_outputs(uint32_t member) {
    Workspace& own = workspaces_[member];
    const Slice slice{chunks_[0], member, team_.members(), own, workspaces_[0]};
    team_.each(slice.chunk.count, [&](uint32_t token) { embed(token); });
    for (uint32_t layer = 0; layer < model_.layers.size(); ++layer) {
        project(slice, layer);
        team_.barrier();
        team_.each(static_cast<uint32_t>(items_.size()), [&](uint32_t i) { attend_item(items_[i], layer, own); });
        join(slice);
        finish_layer(slice, layer);
        team_.barrier();
    }
}

// A round takes each chunk from where its tokens attend to where they have written the next layer's keys and values.
void Forward::run_by_tokens(uint32_t member) {
    Workspace& own = workspaces_[member];
    const auto layers = static_cast<uint32_t>(model_.layers.size()), chunks = static_cast<uint32_t>(chunks_.size());
    for (uint32_t round = 0; round <= layers; ++round)
        team_.each(chunks, [&](uint32_t i) {
            // The last tokens see the most keys: they go first, so that none is left alone at the end.
            const Slice slice{chunks_[chunks - 1 - i], 0, 1, own, own};
            if (round == 0) {
                for (uint32_t t = 0; t < slice.chunk.count; ++t) embed(slice.chunk.token + t);
            } else {
                if (round == layers && !slice.chunk.drawn) return;  // only the KV of these was wanted
                attend_chunk(slice, round - 1);
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
    kernels_.dequantise(model_.embedding, tokens_[token].id, x_ + size_t{token} * config.hidden);
    float* cosines = angles_ + size_t{token} * 2 * config.head_dim;
    float* sines = cosines + config.head_dim;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
        const double angle = tokens_[token].position * frequencies_[i];
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
        float* rows = i == 0 ? q_ + size_t{slice.chunk.token} * stride : slice.own.kv + (i - 1) * config.kv_dim();
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

void Forward::store(const Slice& slice, uint32_t layer, const float* rows, uint32_t row0, uint32_t row1, bool values) {
    const uint32_t dim = model_.config.head_dim;
    const size_t stride = 2 * model_.config.kv_dim();
    for (uint32_t t = 0; t < slice.chunk.count; ++t) {
        const Token& token = tokens_[slice.chunk.token + t];
        const uint32_t offset = token.position % kBlockTokens;
        uint8_t* block = kv_ + token.block * kv_block_ + layer * kv_layer_;
        for (uint32_t r = row0; r < row1; r += kTileRows) {
            const float* from = rows + t * stride + (r - row0);
            uint8_t* head = block + r / dim * kv_head_;
            if (kv_type_ == KvType::f16)
                store_f16(from, reinterpret_cast<uint16_t*>(head), r % dim, offset, values);
            else
                store_i8(from, head, r % dim, offset, values);
        }
    }
}

// 16 values of a token, from dimension `first` of its head on.
void Forward::store_f16(const float* from, uint16_t* head, uint32_t first, uint32_t offset, bool values) const {
    const uint32_t dim = model_.config.head_dim;
    if (values) return kernels_.to_f16(from, head + size_t{kBlockTokens + offset} * dim + first, kTileRows);
    uint16_t narrow[kTileRows];
    kernels_.to_f16(from, narrow, kTileRows);
    for (uint32_t i = 0; i < kTileRows; ++i) head[(first + i) * kBlockTokens + offset] = narrow[i];
}

void Forward::store_i8(const float* from, uint8_t* head, uint32_t first, uint32_t offset, bool values) const {
    static_assert(kTileRows == kKvGroup);
    const uint32_t dim = model_.config.head_dim, size = kBlockTokens * dim;
    auto* levels = reinterpret_cast<int8_t*>(head) + (values ? size : 0);
    auto* scale = reinterpret_cast<uint16_t*>(head + size_t{2} * size) + (values ? dim : 0) + first + offset;
    if (values) return kernels_.to_i8(from, levels + offset * dim + first, scale);
    int8_t narrow[kKvGroup];
    kernels_.to_i8(from, narrow, scale);
    for (uint32_t i = 0; i < kKvGroup; ++i) levels[(first + i) * kBlockTokens + offset] = narrow[i];
}

Attend Forward::attention(const Unit& unit, uint32_t layer, uint32_t head, uint32_t from, float* scratch) const {
    const ModelConfig& config = model_.config;
    const uint32_t group = config.heads / config.kv_heads;
    const Token& first = tokens_[unit.token];
    return {.q = q_ + size_t{unit.token} * config.q_dim() + (head * group + from) * config.head_dim,
            .q_stride = config.q_dim(),
            .queries = unit.queries,
            .first = first.position,
            .group = std::min(kMaxGroup, group - from),
            .head_dim = config.head_dim,
            .kv = kv_ + layer * kv_layer_ + head * kv_head_,
            .block_stride = kv_block_,
            .type = kv_type_,
            .blocks = first.blocks,
            .scratch = scratch};
}

void Forward::attend_item(const Item& item, uint32_t layer, Workspace& own) {
    const ModelConfig& config = model_.config;
    const Unit& unit = units_[item.unit];
    const size_t size = part_floats(config.head_dim), head_size = most_parts_ * size;
    const uint32_t head = item.head * (config.heads / config.kv_heads) + item.from;
    float* out = parts_ + (size_t{unit.token} * config.heads + head) * head_size + item.part * size;
    kernels_.attend_part(attention(unit, layer, item.head, item.from, own.scratch), item.part, out,
                         config.heads * head_size, head_size);
}

void Forward::attend_chunk(const Slice& slice, uint32_t layer) const {
    const ModelConfig& config = model_.config;
    const uint32_t group = config.heads / config.kv_heads;
    for (uint32_t u = slice.chunk.unit; u < slice.chunk.unit_end; ++u) {
        const size_t at = size_t{units_[u].token - slice.chunk.token} * config.q_dim();
        for (uint32_t head = 0; head < config.kv_heads; ++head)
            for (uint32_t from = 0; from < group; from += kMaxGroup)
                kernels_.attend(attention(units_[u], layer, head, from, slice.own.scratch),
                                slice.own.rows + at + (head * group + from) * config.head_dim, config.q_dim());
    }
}

// Joins the parts of attention, which attend_chunk has done already.
void Forward::join(const Slice& slice) const {
    const ModelConfig& config = model_.config;
    const size_t head_size = most_parts_ * part_floats(config.head_dim);
    for (uint32_t t = 0; t < slice.chunk.count; ++t)
        for (uint32_t head = 0; head < config.heads; ++head)
            kernels_.join_parts(parts_ + (size_t{t} * config.heads + head) * head_size,
                                tokens_[slice.chunk.token + t].position / kPartKeys + 1, config.head_dim,
                                slice.own.rows + size_t{t} * config.q_dim() + head * config.head_dim);
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
    const auto draws = static_cast<uint32_t>(draws_.size());
    for (uint32_t first = 0; first < draws; first += span_) {
        const uint32_t count = std::min(span_, draws - first);
        for (uint32_t i = 0; i < count; ++i) {
            float* row = own.rows + size_t{i} * config.hidden;
            kernels_.rms_norm(x_ + size_t{draws_[first + i].token} * config.hidden, model_.output_norm, config.hidden,
                              config.rms_eps, row);
            kernels_.quantise(row, 0, config.hidden / kBlockWeights, config.hidden, i, count, own.in);
        }
        product(model_.head, row0, row1, {own.rows, config.hidden, own.in}, count,
                {logits_ + row0, config.vocab, draw_slots_.data() + first, false}, own, nullptr);
    }
    team_.barrier();
}

void Forward::draw(uint32_t index, uint32_t member) {
    const Draw& wanted = draws_[index];
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
