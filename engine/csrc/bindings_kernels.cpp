#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "bindings.h"
#include "kernels.h"
#include "pack.h"
#include "philox.h"
#include "python_values.h"
#include "sampler.h"

using namespace nanobind::literals;

namespace edge::python {
namespace {

std::vector<uint32_t> philox(const std::vector<uint32_t>& counter, const std::vector<uint32_t>& key) {
    if (counter.size() != 4 || key.size() != 2) refuse("philox4x32 takes 4 counter words and 2 key words");
    const auto words = philox4x32({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
    return {words.begin(), words.end()};
}

nb::bytes matmul(const std::string& isa, const std::string& dtype, nb::bytes weights, uint32_t rows, uint32_t cols,
                 nb::bytes x, uint32_t activation_bits) {
    const DType type = dtype_of(dtype, "weights");
    const size_t tokens = x.size() / sizeof(float) / std::max(cols, 1u);
    if (rows == 0 || cols == 0 || cols % kBlockWeights || tokens * cols * sizeof(float) != x.size() ||
        weights.size() != matrix_bytes(type, rows, cols) || (activation_bits != 8 && activation_bits != 16))
        refuse(
            "activation_bits is not 8 or 16, or the bytes of weights and x do not fit rows and cols, or cols is no "
            "multiple of 32");
    const Kernels& kernels = kernels_for(isa);
    const Matrix matrix{static_cast<const uint8_t*>(weights.data()), type, rows, cols};
    const auto count = static_cast<uint32_t>(tokens);
    const size_t blocks = tokens * (cols / kBlockWeights);
    std::vector<float> in(tokens * cols), out(tokens * rows), scratch(size_t{kPanelRows} * cols);
    std::memcpy(in.data(), x.data(), x.size());
    if (!is_packed(type)) {
        kernels.matmul(matrix, 0, rows, in.data(), cols, count, out.data(), rows, scratch.data());
        return nb::bytes(out.data(), out.size() * sizeof(float));
    }
    std::vector<int8_t> levels(tokens * cols), low(activation_bits == 16 ? levels.size() : 0);
    std::vector<float> scales(blocks), sums(blocks);
    std::vector<int32_t> biases(blocks);
    const Quantised quantised{levels.data(), low.empty() ? nullptr : low.data(), scales.data(), sums.data(),
                              biases.data()};
    for (uint32_t t = 0; t < count; ++t)
        kernels.quantise(in.data() + size_t{t} * cols, 0, cols / kBlockWeights, cols, t, count, quantised);
    kernels.packed_matmul(matrix, 0, rows, quantised, count, {out.data(), rows, nullptr, false}, nullptr);
    return nb::bytes(out.data(), out.size() * sizeof(float));
}

nb::bytes pack_matrix(const std::string& dtype, nb::handle rows, nb::handle cols, nb::bytes data) {
    const DType type = dtype_of(dtype, "pack");
    if (packed_type(type) == type) refuse("pack: dtype " + dtype + " has no packed form; leave it as it is");
    const Matrix matrix{static_cast<const uint8_t*>(data.data()), type, u32(rows, "rows"), u32(cols, "cols")};
    if (matrix.rows == 0 || matrix.cols == 0 || matrix.cols % kBlockWeights ||
        data.size() != matrix_bytes(type, matrix.rows, matrix.cols))
        refuse("pack: the bytes of data do not fit rows and cols, or cols is no multiple of 32");
    const size_t size = matrix_bytes(packed_type(type), matrix.rows, matrix.cols);
    PyObject* packed = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (!packed) throw nb::python_error();
    {
        nb::gil_scoped_release release;
        pack(matrix, reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(packed)));
    }
    return nb::steal<nb::bytes>(packed);
}

nb::object sample(const std::string& isa, nb::bytes logits, nb::handle from, uint32_t position, nb::handle history,
                  nb::handle mask) {
    std::vector<float> values(logits.size() / sizeof(float));
    if (values.empty()) refuse("there are no logits");
    std::memcpy(values.data(), logits.data(), values.size() * sizeof(float));
    const auto vocab = static_cast<uint32_t>(values.size());
    const Sampling sampling = sampling_of(from);
    std::vector<uint32_t> tokens, words(vocab), ids(vocab);
    append(history, "history", tokens);
    const auto all_known = [&](auto begin, auto end) {
        return std::all_of(begin, end, [&](auto id) { return id < vocab; });
    };
    if (!all_known(tokens.begin(), tokens.end()) ||
        !all_known(sampling.bias_ids.begin(), sampling.bias_ids.begin() + sampling.bias_count) ||
        (sampling.min_tokens && !all_known(sampling.stop_ids.begin(), sampling.stop_ids.begin() + sampling.stop_count)))
        refuse("an id is outside the vocabulary of " + std::to_string(vocab));
    Seen seen(words.data(), ids.data());
    for (size_t i = 0; i < tokens.size(); ++i)
        i < sampling.first ? seen.add_prompt(tokens[i]) : seen.add_sampled(tokens[i]);
    std::vector<double> weights(vocab);
    std::vector<uint32_t> order(vocab);
    std::vector<float> adjusted(vocab);
    std::vector<uint32_t> words_of_mask;
    Sampler sampler(vocab, {weights.data(), order.data(), adjusted.data()});
    const Kernels& kernels = kernels_for(isa);
    const auto token = sampler(kernels, values.data(), sampling, seen, position, mask_of(mask, vocab, words_of_mask));
    if (!token) return nb::none();
    const nb::object told =
        sampling.logprobs ? nb::object(view(sampler.logprobs(kernels, values.data(), *token, sampling.top_logprobs)))
                          : nb::none();
    return nb::make_tuple(*token, told);
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.attr("PACKED_ALIGNMENT") = kPackedAlignment;
    m.def("pack", &pack_matrix, "dtype"_a, "rows"_a, "cols"_a, "data"_a,
          "A matrix in GGUF's blocks -> the same weights in tiles of 16 rows.");

    m.def("philox4x32", &philox, "counter"_a, "key"_a);
    m.def("matmul", &matmul, "isa"_a, "dtype"_a, "weights"_a, "rows"_a, "cols"_a, "x"_a, "activation_bits"_a = 16,
          "x [n, cols] f32 times a matrix in GGUF's blocks or packed -> [n, rows] f32.");
    m.def("sample", &sample, "isa"_a, "logits"_a, "sampling"_a, "position"_a, "history"_a = nb::tuple(),
          "allowed"_a = nb::none(),
          "(token, logprobs or None) for `position` out of f32 logits, or None if they are not finite.");
}

}  // namespace edge::python
