// The weights of a llama model, found in a mapped file and held against its size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapped_file.h"
#include "tensor.h"

namespace edge {

struct ModelConfig {
    uint32_t layers = 0;
    uint32_t hidden = 0;
    uint32_t ffn = 0;
    uint32_t heads = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t vocab = 0;
    double rope_theta = 0.0;
    float rms_eps = 0.0f;

    uint32_t q_dim() const { return heads * head_dim; }
    uint32_t kv_dim() const { return kv_heads * head_dim; }
};

// A line of the file's tensor table: shape row-major, offset from the start of the file.
struct TensorEntry {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    uint64_t offset = 0;
    uint64_t nbytes = 0;
};

// GGUF's name of a type, with x16 after it for the packed ones. Throws std::invalid_argument, beginning with `where`,
// for one without kernels.
DType dtype_of(const std::string& name, const std::string& where);

struct Layer {
    const float* attn_norm;
    const float* ffn_norm;
    Matrix q, k, v, attn_output, gate, up, down;
};

struct Model {
    ModelConfig config;
    MappedFile file;
    Matrix embedding;
    Matrix head;  // the embedding, unless the file has its own
    const float* output_norm = nullptr;
    std::vector<Layer> layers;

    // Throws std::invalid_argument naming the tensor or number that is wrong, std::runtime_error if the file cannot be
    // mapped.
    Model(const std::string& path, const ModelConfig& config, const std::vector<TensorEntry>& tensors);
};

}  // namespace edge
