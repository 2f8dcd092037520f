#include "python_values.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "masks.h"

namespace edge::python {

void refuse(const std::string& what) { throw std::invalid_argument(what); }

uint64_t unsigned_of(nb::handle value, const char* name, uint64_t most) {
    if (PyLong_Check(value.ptr())) {
        const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
        if (!PyErr_Occurred() && number <= most) return number;
        PyErr_Clear();
    }
    refuse(std::string(name) + " must be an integer in [0, " + std::to_string(most) + "]");
}

uint32_t u32(nb::handle value, const char* name) {
    return static_cast<uint32_t>(unsigned_of(value, name, std::numeric_limits<uint32_t>::max()));
}

uint64_t u64(nb::handle value, const char* name) {
    return unsigned_of(value, name, std::numeric_limits<uint64_t>::max());
}

void append(nb::handle values, const char* name, std::vector<uint32_t>& out) {
    if (!PyTuple_Check(values.ptr())) refuse(std::string(name) + " must be a tuple of integers");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values.ptr()); ++i)
        out.push_back(u32(PyTuple_GET_ITEM(values.ptr(), i), name));
}

namespace {

double number_of(nb::handle value, const char* name) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (!PyErr_Occurred()) return number;
    PyErr_Clear();
    refuse(std::string(name) + " must be a number");
}

float float_of(nb::handle value, const char* name) { return static_cast<float>(number_of(value, name)); }

void read_biases(nb::handle pairs, Sampling& to) {
    if (!PyTuple_Check(pairs.ptr())) refuse("bias must be a tuple of (id, number)");
    const Py_ssize_t count = PyTuple_GET_SIZE(pairs.ptr());
    if (count > kMaxBiases) refuse(std::to_string(count) + " biases; the limit is " + std::to_string(kMaxBiases));
    to.bias_count = static_cast<uint32_t>(count);
    for (uint32_t i = 0; i < to.bias_count; ++i) {
        PyObject* pair = PyTuple_GET_ITEM(pairs.ptr(), static_cast<Py_ssize_t>(i));
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) refuse("bias must be a tuple of (id, number)");
        to.bias_ids[i] = u32(PyTuple_GET_ITEM(pair, 0), "bias id");
        to.biases[i] = float_of(PyTuple_GET_ITEM(pair, 1), "bias");
    }
}

void read_stop_ids(nb::handle tuple, Sampling& to) {
    std::vector<uint32_t> ids;
    append(tuple, "stop_ids", ids);
    if (ids.size() > kMaxStopIds)
        refuse(std::to_string(ids.size()) + " stop_ids; the limit is " + std::to_string(kMaxStopIds));
    to.stop_count = static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), to.stop_ids.begin());
}

TensorEntry tensor_of(nb::handle from) {
    TensorEntry to;
    to.name = nb::cast<std::string>(from.attr("name"));
    to.dtype = nb::cast<std::string>(from.attr("dtype"));
    const std::string where = "tensor " + to.name + ": ";
    for (const nb::handle n : from.attr("shape")) to.shape.push_back(u64(n, (where + "shape").c_str()));
    to.offset = u64(from.attr("offset"), (where + "offset").c_str());
    to.nbytes = u64(from.attr("nbytes"), (where + "nbytes").c_str());
    return to;
}

}  // namespace

Sampling sampling_of(nb::handle from) {
    Sampling to;
    to.temperature = number_of(from.attr("temperature"), "temperature");
    to.top_p = number_of(from.attr("top_p"), "top_p");
    to.min_p = number_of(from.attr("min_p"), "min_p");
    to.top_k = u32(from.attr("top_k"), "top_k");
    to.repetition = float_of(from.attr("repetition"), "repetition");
    to.frequency = float_of(from.attr("frequency"), "frequency");
    to.presence = float_of(from.attr("presence"), "presence");
    to.seed = u64(from.attr("seed"), "seed");
    to.first = u32(from.attr("first"), "first");
    to.min_tokens = u32(from.attr("min_tokens"), "min_tokens");
    to.constrained = nb::cast<bool>(from.attr("constrained"));
    if (const nb::object top = from.attr("logprobs"); !top.is_none()) {
        to.logprobs = true;
        to.top_logprobs = static_cast<uint32_t>(unsigned_of(top, "logprobs", kMaxTop));
    }
    read_stop_ids(from.attr("stop_ids"), to);
    read_biases(from.attr("bias"), to);
    return to;
}

const uint32_t* mask_of(nb::handle mask, uint32_t vocab, std::vector<uint32_t>& words) {
    if (mask.is_none()) return nullptr;
    words.resize(mask_words(vocab));
    const size_t size = words.size() * sizeof(uint32_t);
    if (!PyBytes_Check(mask.ptr()) || static_cast<size_t>(PyBytes_GET_SIZE(mask.ptr())) < size)
        refuse("a mask must be None or bytes, a bit a token, " + std::to_string(size) + " at least");
    std::memcpy(words.data(), PyBytes_AS_STRING(mask.ptr()), size);
    return words.data();
}

nb::tuple view(const Logprobs& logprobs) {
    nb::list top;
    for (uint32_t i = 0; i < logprobs.count; ++i) top.append(nb::make_tuple(logprobs.top[i].id, logprobs.top[i].value));
    return nb::make_tuple(logprobs.sampled, nb::tuple(top));
}

ModelConfig config_of(nb::handle from) {
    ModelConfig to;
    to.layers = u32(from.attr("layers"), "layers");
    to.hidden = u32(from.attr("hidden"), "hidden");
    to.ffn = u32(from.attr("ffn"), "ffn");
    to.heads = u32(from.attr("heads"), "heads");
    to.kv_heads = u32(from.attr("kv_heads"), "kv_heads");
    to.head_dim = u32(from.attr("head_dim"), "head_dim");
    to.vocab = u32(from.attr("vocab"), "vocab");
    to.rope_theta = number_of(from.attr("rope_theta"), "rope_theta");
    to.rms_eps = static_cast<float>(number_of(from.attr("rms_eps"), "rms_eps"));
    return to;
}

std::vector<TensorEntry> tensors_of(nb::handle tensors) {
    std::vector<TensorEntry> found;
    for (const nb::handle tensor : tensors) found.push_back(tensor_of(tensor));
    return found;
}

std::vector<Placement> placements_of(nb::handle plan) {
    std::vector<Placement> found;
    for (const nb::handle from : plan) {
        Placement to;
        to.name = nb::cast<std::string>(from.attr("name"));
        const std::string where = "memory plan: '" + to.name + "' ";
        to.offset = u64(from.attr("offset"), (where + "offset").c_str());
        to.nbytes = u64(from.attr("nbytes"), (where + "nbytes").c_str());
        to.copies = u32(from.attr("copies"), (where + "copies").c_str());
        to.stride = u64(from.attr("stride"), (where + "stride").c_str());
        found.push_back(to);
    }
    if (found.empty()) refuse("memory plan: it is empty");
    return found;
}

}  // namespace edge::python
