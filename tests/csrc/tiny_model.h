// A random llama in a temporary file, with every tensor type among its matrices.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "f16.h"
#include "model.h"
#include "pack.h"

namespace edge::test {

class TinyModel {
  public:
    ModelConfig config{.layers = 2,
                       .hidden = 64,
                       .ffn = 96,
                       .heads = 6,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .vocab = 77,
                       .rope_theta = 1e4,
                       .rms_eps = 1e-5f};
    std::string path;
    std::vector<TensorEntry> tensors;

    // packed: what can be is packed, the rest stays as it is.
    explicit TinyModel(bool packed = false) : packed_(packed) {
        add("token_embd.weight", "Q8_0", config.vocab, config.hidden);
        add("output_norm.weight", "F32", 1, config.hidden);
        for (uint32_t layer = 0; layer < config.layers; ++layer) {
            const std::string prefix = "blk." + std::to_string(layer) + ".";
            add(prefix + "attn_norm.weight", "F32", 1, config.hidden);
            add(prefix + "ffn_norm.weight", "F32", 1, config.hidden);
            add(prefix + "attn_q.weight", "Q4_1", config.q_dim(), config.hidden);
            add(prefix + "attn_k.weight", "Q8_0", config.kv_dim(), config.hidden);
            add(prefix + "attn_v.weight", "F16", config.kv_dim(), config.hidden);
            add(prefix + "attn_output.weight", "Q4_1", config.hidden, config.q_dim());
            add(prefix + "ffn_gate.weight", "F32", config.ffn, config.hidden);
            add(prefix + "ffn_up.weight", "Q4_1", config.ffn, config.hidden);
            add(prefix + "ffn_down.weight", "Q4_1", config.hidden, config.ffn);
        }
        write();
    }
    ~TinyModel() { std::remove(path.c_str()); }
    TinyModel(const TinyModel&) = delete;
    TinyModel& operator=(const TinyModel&) = delete;

    static std::vector<uint8_t> weights(DType dtype, size_t blocks, uint32_t seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0.0f, 0.2f);
        std::vector<uint8_t> bytes(blocks * block_bytes(dtype));
        for (size_t b = 0; b < blocks; ++b) {
            uint8_t* block = bytes.data() + b * block_bytes(dtype);
            if (dtype == DType::f32 || dtype == DType::f16) {
                for (uint32_t i = 0; i < kBlockWeights; ++i) put(block, dtype, i, normal(random));
                continue;
            }
            for (size_t i = 0; i < block_bytes(dtype); ++i) block[i] = static_cast<uint8_t>(random());
            put(block, DType::f16, 0, dtype == DType::q8_0 ? 0.002f : 0.03f);
            if (dtype == DType::q4_1) put(block, DType::f16, 1, -0.2f);
        }
        return bytes;
    }

  private:
    static void put(uint8_t* to, DType dtype, uint32_t index, float value) {
        if (dtype == DType::f32) {
            std::memcpy(to + 4 * index, &value, 4);
        } else {
            const uint16_t half = f32_to_f16(value);
            std::memcpy(to + 2 * index, &half, 2);
        }
    }

    void add(const std::string& name, const std::string& dtype, uint32_t rows, uint32_t cols) {
        const DType type = dtype_of(dtype, name);
        std::vector<uint8_t> raw =
            weights(type, size_t{rows} * cols / kBlockWeights, static_cast<uint32_t>(tensors.size()));
        const bool packs = packed_ && packed_type(type) != type;
        if (packs) {
            std::vector<uint8_t> tiles(matrix_bytes(packed_type(type), rows, cols));
            pack({raw.data(), type, rows, cols}, tiles.data());
            raw = tiles;
        }
        const std::vector<uint64_t> shape = rows == 1 ? std::vector<uint64_t>{cols} : std::vector<uint64_t>{rows, cols};
        tensors.push_back({name, packs ? dtype + "x16" : dtype, shape, bytes_.size(), raw.size()});
        bytes_.insert(bytes_.end(), raw.begin(), raw.end());
        bytes_.resize((bytes_.size() + 63) / 64 * 64);
    }

    void write() {
        char name[] = "/tmp/edge-tiny-XXXXXX";
        const int file = ::mkstemp(name);
        if (file < 0 || ::write(file, bytes_.data(), bytes_.size()) != static_cast<ssize_t>(bytes_.size()))
            std::abort();
        ::close(file);
        path = name;
    }

    const bool packed_;
    std::vector<uint8_t> bytes_;
};

}  // namespace edge::test
