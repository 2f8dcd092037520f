// engine._native: the executor for Python, and single kernels for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "executor.h"
#include "pack.h"
#include "philox.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

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

double number_of(nb::handle value, const char* name) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (!PyErr_Occurred()) return number;
    PyErr_Clear();
    refuse(std::string(name) + " must be a number");
}

void append(nb::handle values, const char* name, std::vector<uint32_t>& out) {
    if (!PyTuple_Check(values.ptr())) refuse(std::string(name) + " must be a tuple of integers");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values.ptr()); ++i)
        out.push_back(u32(PyTuple_GET_ITEM(values.ptr(), i), name));
}

float float_of(nb::handle value, const char* name) { return static_cast<float>(number_of(value, name)); }

void read_biases(nb::handle pairs, edge::Sampling& to) {
    if (!PyTuple_Check(pairs.ptr())) refuse("bias must be a tuple of (id, number)");
    const Py_ssize_t count = PyTuple_GET_SIZE(pairs.ptr());
    if (count > edge::kMaxBiases)
        refuse(std::to_string(count) + " biases; the limit is " + std::to_string(edge::kMaxBiases));
    to.bias_count = static_cast<uint32_t>(count);
    for (uint32_t i = 0; i < to.bias_count; ++i) {
        PyObject* pair = PyTuple_GET_ITEM(pairs.ptr(), static_cast<Py_ssize_t>(i));
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) refuse("bias must be a tuple of (id, number)");
        to.bias_ids[i] = u32(PyTuple_GET_ITEM(pair, 0), "bias id");
        to.biases[i] = float_of(PyTuple_GET_ITEM(pair, 1), "bias");
    }
}

void read_stop_ids(nb::handle tuple, edge::Sampling& to) {
    std::vector<uint32_t> ids;
    append(tuple, "stop_ids", ids);
    if (ids.size() > edge::kMaxStopIds)
        refuse(std::to_string(ids.size()) + " stop_ids; the limit is " + std::to_string(edge::kMaxStopIds));
    to.stop_count = static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), to.stop_ids.begin());
}

edge::Sampling sampling_of(nb::handle from) {
    edge::Sampling to;
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
        to.top_logprobs = static_cast<uint32_t>(unsigned_of(top, "logprobs", edge::kMaxTop));
    }
    read_stop_ids(from.attr("stop_ids"), to);
    read_biases(from.attr("bias"), to);
    return to;
}

// The words of a mask, kept in `words`; null for None.
const uint32_t* mask_of(nb::handle mask, uint32_t vocab, std::vector<uint32_t>& words) {
    if (mask.is_none()) return nullptr;
    words.resize(edge::mask_words(vocab));
    const size_t size = words.size() * sizeof(uint32_t);
    if (!PyBytes_Check(mask.ptr()) || static_cast<size_t>(PyBytes_GET_SIZE(mask.ptr())) < size)
        refuse("a mask must be None or bytes, a bit a token, " + std::to_string(size) + " at least");
    std::memcpy(words.data(), PyBytes_AS_STRING(mask.ptr()), size);
    return words.data();
}

// (of the sampled token, ((id, value), ...))
nb::tuple view(const edge::Logprobs& logprobs) {
    nb::list top;
    for (uint32_t i = 0; i < logprobs.count; ++i) top.append(nb::make_tuple(logprobs.top[i].id, logprobs.top[i].value));
    return nb::make_tuple(logprobs.sampled, nb::tuple(top));
}

edge::TensorEntry tensor_of(nb::handle from) {
    edge::TensorEntry to;
    to.name = nb::cast<std::string>(from.attr("name"));
    to.dtype = nb::cast<std::string>(from.attr("dtype"));
    const std::string where = "tensor " + to.name + ": ";
    for (const nb::handle n : from.attr("shape")) to.shape.push_back(u64(n, (where + "shape").c_str()));
    to.offset = u64(from.attr("offset"), (where + "offset").c_str());
    to.nbytes = u64(from.attr("nbytes"), (where + "nbytes").c_str());
    return to;
}

edge::ModelConfig config_of(nb::handle from) {
    edge::ModelConfig to;
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

// Keeps the working vectors of submit, so that a step allocates nothing but Python's own objects.
class PyExecutor {
  public:
    PyExecutor(const std::string& path, nb::handle config, nb::handle tensors, nb::handle threads, nb::handle slots,
               nb::handle blocks, nb::handle context, nb::handle step_tokens, const std::string& isa,
               nb::handle activation_bits, nb::handle plan, const std::string& kv_dtype)
        : executor_(made(path, config, tensors, threads, slots, blocks, context, step_tokens, isa, activation_bits,
                         plan, kv_dtype)) {}

    const char* isa() const { return executor_.isa(); }

    // (share in memory before, seconds to read the rest, share now)
    nb::tuple residency() const {
        const edge::MappedFile& file = executor_.file();
        double now = 0.0;
        {
            nb::gil_scoped_release release;
            now = file.resident();
        }
        return nb::make_tuple(file.resident_before(), file.populate_s(), now);
    }

    void submit(nb::handle plan) {
        ids_.clear();
        rows_.clear();
        opens_.clear();
        const nb::object rows = plan.attr("rows");
        spans_.clear();
        for (const nb::handle row : rows) read(row);
        for (size_t i = 0; i < rows_.size(); ++i) {
            const Span& span = spans_[i];
            rows_[i].tokens = {ids_.data() + span.tokens, span.blocks - span.tokens};
            rows_[i].blocks = {ids_.data() + span.blocks, span.history - span.blocks};
            rows_[i].history = {ids_.data() + span.history, span.end - span.history};
            rows_[i].opens = span.opens ? &opens_[span.opens - 1] : nullptr;
        }
        executor_.submit(
            static_cast<int64_t>(unsigned_of(plan.attr("step"), "step", std::numeric_limits<int64_t>::max())), rows_);
    }

    void allow(nb::handle slot, nb::handle step, nb::handle mask) {
        const uint32_t index = u32(slot, "slot");
        const auto at = static_cast<int64_t>(unsigned_of(step, "step", std::numeric_limits<int64_t>::max()));
        const uint32_t* words = mask_of(mask, executor_.vocab(), words_);
        executor_.allow(index, at, words);
    }

    // (step, [(slot, token or None, finish, logprobs or None)], started, ended); finish: 0 none, 1 stop, 2 error
    nb::tuple collect() {
        const edge::Job* job;
        {
            nb::gil_scoped_release release;
            job = &executor_.collect();
        }
        nb::list rows;
        for (const edge::Job::Outcome& row : job->outcomes)
            rows.append(nb::make_tuple(row.slot, row.sampled ? nb::cast(row.token) : nb::none(),
                                       static_cast<int>(row.finish),
                                       row.told ? nb::object(view(row.logprobs)) : nb::none()));
        return nb::make_tuple(job->step, rows, job->started, job->ended);
    }

    nb::object logits(nb::handle slot) {
        const float* values = executor_.logits(u32(slot, "slot"));
        return values ? nb::object(nb::bytes(values, executor_.vocab() * sizeof(float))) : nb::none();
    }

    std::vector<double> worker_seconds() const { return executor_.worker_seconds(); }

    size_t block_bytes() const { return executor_.block_bytes(); }

    nb::bytes read_block(nb::handle block) const {
        return nb::bytes(executor_.block(u32(block, "block")), executor_.block_bytes());
    }

    void write_block(nb::handle block, nb::handle content) {
        const uint32_t index = u32(block, "block");
        Py_buffer view{};
        if (PyObject_GetBuffer(content.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
        const auto size = static_cast<size_t>(view.len);
        const bool fits = size == executor_.block_bytes();
        if (fits) executor_.write_block(index, view.buf);
        PyBuffer_Release(&view);
        if (!fits)
            refuse("a block has " + std::to_string(executor_.block_bytes()) + " bytes, not " + std::to_string(size));
    }

    void release() {
        nb::gil_scoped_release release;
        executor_.release();
    }

    void close() {
        nb::gil_scoped_release release;
        executor_.close();
    }

  private:
    struct Span {
        size_t tokens, blocks, history, end;  // into ids_
        size_t opens;                         // into opens_, plus 1
    };

    // What is wrong with the sizes themselves is said before what that does to the plan.
    static edge::Executor made(const std::string& path, nb::handle config, nb::handle tensors, nb::handle threads,
                               nb::handle slots, nb::handle blocks, nb::handle context, nb::handle step_tokens,
                               const std::string& isa, nb::handle activation_bits, nb::handle plan,
                               const std::string& kv_dtype) {
        if (kv_dtype != "f16" && kv_dtype != "int8") refuse("kv_dtype " + kv_dtype + " is not one of f16, int8");
        const edge::Limits limits{.slots = u32(slots, "slots"),
                                  .blocks = u32(blocks, "blocks"),
                                  .context = u32(context, "context"),
                                  .step_tokens = u32(step_tokens, "step_tokens")};
        const uint32_t members = u32(threads, "threads");
        edge::check_limits(limits, members);
        return edge::Executor(path, config_of(config), entries(tensors), limits, members, isa,
                              u32(activation_bits, "activation_bits"), placements(plan),
                              kv_dtype == "int8" ? edge::KvType::int8 : edge::KvType::f16);
    }

    static std::vector<edge::TensorEntry> entries(nb::handle tensors) {
        std::vector<edge::TensorEntry> found;
        for (const nb::handle tensor : tensors) found.push_back(tensor_of(tensor));
        return found;
    }

    static std::vector<edge::Placement> placements(nb::handle plan) {
        std::vector<edge::Placement> found;
        for (const nb::handle from : plan) {
            edge::Placement to;
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

    void read(nb::handle row) {
        edge::PlanRow to;
        to.slot = u32(row.attr("slot"), "slot");
        to.start = u32(row.attr("start"), "start");
        to.sample = nb::cast<bool>(row.attr("sample"));
        Span span{};
        span.tokens = ids_.size();
        append(row.attr("tokens"), "tokens", ids_);
        span.blocks = ids_.size();
        append(row.attr("blocks"), "blocks", ids_);
        span.history = ids_.size();
        if (const nb::object opens = row.attr("opens"); !opens.is_none()) {
            opens_.push_back(sampling_of(opens));
            span.opens = opens_.size();
            append(row.attr("history"), "history", ids_);
        }
        span.end = ids_.size();
        rows_.push_back(to);
        spans_.push_back(span);
    }

    edge::Executor executor_;
    std::vector<uint32_t> ids_;
    std::vector<Span> spans_;
    std::vector<edge::Sampling> opens_;
    std::vector<edge::PlanRow> rows_;
    std::vector<uint32_t> words_;
};

std::vector<uint32_t> philox(const std::vector<uint32_t>& counter, const std::vector<uint32_t>& key) {
    if (counter.size() != 4 || key.size() != 2) refuse("philox4x32 takes 4 counter words and 2 key words");
    const auto words = edge::philox4x32({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
    return {words.begin(), words.end()};
}

nb::bytes matmul(const std::string& isa, const std::string& dtype, nb::bytes weights, uint32_t rows, uint32_t cols,
                 nb::bytes x, uint32_t activation_bits) {
    const edge::DType type = edge::dtype_of(dtype, "weights");
    const size_t tokens = x.size() / sizeof(float) / std::max(cols, 1u);
    if (rows == 0 || cols == 0 || cols % edge::kBlockWeights || tokens * cols * sizeof(float) != x.size() ||
        weights.size() != edge::matrix_bytes(type, rows, cols) || (activation_bits != 8 && activation_bits != 16))
        refuse(
            "activation_bits is not 8 or 16, or the bytes of weights and x do not fit rows and cols, or cols is no "
            "multiple of 32");
    const edge::Kernels& kernels = edge::kernels_for(isa);
    const edge::Matrix matrix{static_cast<const uint8_t*>(weights.data()), type, rows, cols};
    const auto count = static_cast<uint32_t>(tokens);
    const size_t blocks = tokens * (cols / edge::kBlockWeights);
    std::vector<float> in(tokens * cols), out(tokens * rows), scratch(size_t{edge::kPanelRows} * cols);
    std::memcpy(in.data(), x.data(), x.size());
    if (!edge::is_packed(type)) {
        kernels.matmul(matrix, 0, rows, in.data(), cols, count, out.data(), rows, scratch.data());
        return nb::bytes(out.data(), out.size() * sizeof(float));
    }
    std::vector<int8_t> levels(tokens * cols), low(activation_bits == 16 ? levels.size() : 0);
    std::vector<float> scales(blocks), sums(blocks);
    std::vector<int32_t> biases(blocks);
    const edge::Quantised quantised{levels.data(), low.empty() ? nullptr : low.data(), scales.data(), sums.data(),
                                    biases.data()};
    for (uint32_t t = 0; t < count; ++t)
        kernels.quantise(in.data() + size_t{t} * cols, 0, cols / edge::kBlockWeights, cols, t, count, quantised);
    kernels.packed_matmul(matrix, 0, rows, quantised, count, {out.data(), rows, nullptr, false}, nullptr);
    return nb::bytes(out.data(), out.size() * sizeof(float));
}

nb::bytes pack(const std::string& dtype, nb::handle rows, nb::handle cols, nb::bytes data) {
    const edge::DType type = edge::dtype_of(dtype, "pack");
    if (edge::packed_type(type) == type) refuse("pack: dtype " + dtype + " has no packed form; leave it as it is");
    const edge::Matrix matrix{static_cast<const uint8_t*>(data.data()), type, u32(rows, "rows"), u32(cols, "cols")};
    if (matrix.rows == 0 || matrix.cols == 0 || matrix.cols % edge::kBlockWeights ||
        data.size() != edge::matrix_bytes(type, matrix.rows, matrix.cols))
        refuse("pack: the bytes of data do not fit rows and cols, or cols is no multiple of 32");
    const size_t size = edge::matrix_bytes(edge::packed_type(type), matrix.rows, matrix.cols);
    PyObject* packed = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (!packed) throw nb::python_error();
    {
        nb::gil_scoped_release release;
        edge::pack(matrix, reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(packed)));
    }
    return nb::steal<nb::bytes>(packed);
}

nb::object sample(const std::string& isa, nb::bytes logits, nb::handle from, uint32_t position, nb::handle history,
                  nb::handle mask) {
    std::vector<float> values(logits.size() / sizeof(float));
    if (values.empty()) refuse("there are no logits");
    std::memcpy(values.data(), logits.data(), values.size() * sizeof(float));
    const auto vocab = static_cast<uint32_t>(values.size());
    const edge::Sampling sampling = sampling_of(from);
    std::vector<uint32_t> tokens, words(vocab), ids(vocab);
    append(history, "history", tokens);
    const auto all_known = [&](auto begin, auto end) {
        return std::all_of(begin, end, [&](auto id) { return id < vocab; });
    };
    if (!all_known(tokens.begin(), tokens.end()) ||
        !all_known(sampling.bias_ids.begin(), sampling.bias_ids.begin() + sampling.bias_count) ||
        (sampling.min_tokens && !all_known(sampling.stop_ids.begin(), sampling.stop_ids.begin() + sampling.stop_count)))
        refuse("an id is outside the vocabulary of " + std::to_string(vocab));
    edge::Seen seen(words.data(), ids.data());
    for (size_t i = 0; i < tokens.size(); ++i)
        i < sampling.first ? seen.add_prompt(tokens[i]) : seen.add_sampled(tokens[i]);
    std::vector<double> weights(vocab);
    std::vector<uint32_t> order(vocab);
    std::vector<float> adjusted(vocab);
    std::vector<uint32_t> words_of_mask;
    edge::Sampler sampler(vocab, {weights.data(), order.data(), adjusted.data()});
    const edge::Kernels& kernels = edge::kernels_for(isa);
    const auto token = sampler(kernels, values.data(), sampling, seen, position, mask_of(mask, vocab, words_of_mask));
    if (!token) return nb::none();
    const nb::object told =
        sampling.logprobs ? nb::object(view(sampler.logprobs(kernels, values.data(), *token, sampling.top_logprobs)))
                          : nb::none();
    return nb::make_tuple(*token, told);
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("isas", &edge::available_isas, "Instruction sets that this machine runs, best first.");

    nb::class_<PyExecutor>(m, "Executor")
        .def(nb::init<const std::string&, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                      nb::handle, const std::string&, nb::handle, nb::handle, const std::string&>(),
             "path"_a, "config"_a, "tensors"_a, nb::kw_only(), "threads"_a, "slots"_a, "blocks"_a, "context"_a,
             "step_tokens"_a, "isa"_a, "activation_bits"_a, "plan"_a, "kv_dtype"_a)
        .def_prop_ro("isa", &PyExecutor::isa)
        .def("residency", &PyExecutor::residency)
        .def("submit", &PyExecutor::submit, "plan"_a)
        .def("allow", &PyExecutor::allow, "slot"_a, "step"_a, "mask"_a.none())
        .def("collect", &PyExecutor::collect)
        .def("logits", &PyExecutor::logits, "slot"_a)
        .def("worker_seconds", &PyExecutor::worker_seconds)
        .def_prop_ro("block_bytes", &PyExecutor::block_bytes)
        .def("read_block", &PyExecutor::read_block, "block"_a)
        .def("write_block", &PyExecutor::write_block, "block"_a, "content"_a)
        .def("release", &PyExecutor::release)
        .def("close", &PyExecutor::close);

    m.attr("PACKED_ALIGNMENT") = edge::kPackedAlignment;
    m.def("pack", &pack, "dtype"_a, "rows"_a, "cols"_a, "data"_a,
          "A matrix in GGUF's blocks -> the same weights in tiles of 16 rows.");

    m.def("philox4x32", &philox, "counter"_a, "key"_a);
    m.def("matmul", &matmul, "isa"_a, "dtype"_a, "weights"_a, "rows"_a, "cols"_a, "x"_a, "activation_bits"_a = 16,
          "x [n, cols] f32 times a matrix in GGUF's blocks or packed -> [n, rows] f32.");
    m.def("sample", &sample, "isa"_a, "logits"_a, "sampling"_a, "position"_a, "history"_a = nb::tuple(),
          "allowed"_a = nb::none(),
          "(token, logprobs or None) for `position` out of f32 logits, or None if they are not finite.");
}
