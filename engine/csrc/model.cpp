#include "model.h"

#include <cmath>
#include <stdexcept>
#include <unordered_map>

#include "kernels.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_range(const char* name, uint32_t value, uint32_t most, uint32_t multiple = 1) {
    if (value == 0 || value > most || value % multiple != 0)
        refuse(std::string(name) + " is " + std::to_string(value) + "; this executor needs a multiple of " +
               std::to_string(multiple) + " in [1, " + std::to_string(most) + "]");
}

// The upper bounds keep every later product within 64 bits.
const ModelConfig& checked(const ModelConfig& c) {
    check_range("layers", c.layers, 1024);
    check_range("hidden", c.hidden, 1u << 16, kBlockWeights);
    check_range("ffn", c.ffn, 1u << 18, kBlockWeights);
    check_range("heads", c.heads, 1024);
    check_range("kv_heads", c.kv_heads, c.heads);
    check_range("head_dim", c.head_dim, kMaxHeadDim, kBlockTokens);
    check_range("heads * head_dim", c.q_dim(), 1u << 19, kBlockWeights);
    check_range("vocab", c.vocab, 1u << 22);
    if (c.heads % c.kv_heads != 0)
        refuse("heads (" + std::to_string(c.heads) + ") is not a multiple of kv_heads (" + std::to_string(c.kv_heads) +
               ")");
    if (!(std::isfinite(c.rope_theta) && c.rope_theta > 0.0)) refuse("rope_theta must be a positive number");
    if (!(std::isfinite(c.rms_eps) && c.rms_eps >= 0.0f)) refuse("rms_eps must be a number >= 0");
    return c;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
    std::string text = "[";
    for (const uint64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
    return text + "]";
}

// Hands out tensors by name and remembers which nobody asked for.
class Table {
  public:
    Table(const MappedFile& file, const std::vector<TensorEntry>& tensors) : file_(file) {
        for (const TensorEntry& tensor : tensors)
            if (!entries_.emplace(tensor.name, &tensor).second) refuse("tensor " + tensor.name + " occurs twice");
    }

    bool has(const std::string& name) const { return entries_.count(name) != 0; }

    Matrix matrix(const std::string& name, uint32_t rows, uint32_t cols) {
        return take(name, {rows, cols}, rows, cols);
    }

    const float* vector(const std::string& name, uint32_t n) {
        const Matrix taken = take(name, {n}, 1, n);
        if (taken.dtype != DType::f32) refuse("tensor " + name + ": a norm must be F32");
        return reinterpret_cast<const float*>(taken.data);
    }

    void expect_empty() const {
        if (!entries_.empty())
            refuse("tensor " + entries_.begin()->first +
                   " is no part of a plain llama model; it would change the output");
    }

  private:
    Matrix take(const std::string& name, const std::vector<uint64_t>& shape, uint32_t rows, uint32_t cols) {
        const auto found = entries_.find(name);
        if (found == entries_.end()) refuse("tensor " + name + " is missing");
        const TensorEntry& entry = *found->second;
        entries_.erase(found);
        if (entry.shape != shape)
            refuse("tensor " + name + " has shape " + shape_text(entry.shape) + ", expected " + shape_text(shape));
        const DType dtype = dtype_of(entry.dtype, "tensor " + name);
        const uint64_t bytes = matrix_bytes(dtype, rows, cols);
        if (entry.nbytes != bytes)
            refuse("tensor " + name + " has " + std::to_string(entry.nbytes) + " bytes, expected " +
                   std::to_string(bytes));
        if (entry.offset > file_.size() || bytes > file_.size() - entry.offset)
            refuse("tensor " + name + " ends outside the file (offset " + std::to_string(entry.offset) + ", " +
                   std::to_string(bytes) + " bytes of a file of " + std::to_string(file_.size()) + ")");
        const uint32_t alignment = is_packed(dtype) ? kPackedAlignment : 4;
        if (entry.offset % alignment != 0)
            refuse("tensor " + name + ": offset is not a multiple of " + std::to_string(alignment));
        return {file_.data() + entry.offset, dtype, rows, cols};
    }

    const MappedFile& file_;
    std::unordered_map<std::string, const TensorEntry*> entries_;
};

}  // namespace

DType dtype_of(const std::string& name, const std::string& where) {
    if (name == "F32") return DType::f32;
    if (name == "F16") return DType::f16;
    if (name == "Q4_1") return DType::q4_1;
    if (name == "Q8_0") return DType::q8_0;
    if (name == "Q4_1x16") return DType::q4_1x16;
    if (name == "Q8_0x16") return DType::q8_0x16;
    refuse(where + ": dtype " + name + " is not one of F32, F16, Q4_1, Q8_0, Q4_1x16, Q8_0x16");
}

Model::Model(const std::string& path, const ModelConfig& shape, const std::vector<TensorEntry>& tensors)
    : config(checked(shape)), file(path) {
    Table table(file, tensors);
    embedding = table.matrix("token_embd.weight", config.vocab, config.hidden);
    head = table.has("output.weight") ? table.matrix("output.weight", config.vocab, config.hidden) : embedding;
    output_norm = table.vector("output_norm.weight", config.hidden);
    for (uint32_t i = 0; i < config.layers; ++i) {
        const std::string prefix = "blk." + std::to_string(i) + ".";
        Layer layer;
        layer.attn_norm = table.vector(prefix + "attn_norm.weight", config.hidden);
        layer.ffn_norm = table.vector(prefix + "ffn_norm.weight", config.hidden);
        layer.q = table.matrix(prefix + "attn_q.weight", config.q_dim(), config.hidden);
        layer.k = table.matrix(prefix + "attn_k.weight", config.kv_dim(), config.hidden);
        layer.v = table.matrix(prefix + "attn_v.weight", config.kv_dim(), config.hidden);
        layer.attn_output = table.matrix(prefix + "attn_output.weight", config.hidden, config.q_dim());
        layer.gate = table.matrix(prefix + "ffn_gate.weight", config.ffn, config.hidden);
        layer.up = table.matrix(prefix + "ffn_up.weight", config.ffn, config.hidden);
        layer.down = table.matrix(prefix + "ffn_down.weight", config.hidden, config.ffn);
        layers.push_back(layer);
    }
    table.expect_empty();
}

}  // namespace edge
