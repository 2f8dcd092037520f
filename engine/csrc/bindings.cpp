// engine._native: the executor for Python.
#include "bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "executor.h"
#include "kernels.h"
#include "python_values.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace edge::python;

namespace {

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

    // Fills `into` with the mapped file's bytes from `offset` on.
    void read_file(nb::handle offset, nb::handle into) const {
        const uint64_t at = unsigned_of(offset, "offset", std::numeric_limits<int64_t>::max());
        Py_buffer view{};
        if (PyObject_GetBuffer(into.ptr(), &view, PyBUF_WRITABLE) != 0) throw nb::python_error();
        const edge::MappedFile& file = executor_.file();
        const auto size = static_cast<size_t>(view.len);
        const bool fits = at <= file.size() && size <= file.size() - at;
        if (fits) {
            nb::gil_scoped_release release;
            file.copy(at, size, static_cast<uint8_t*>(view.buf));
        }
        PyBuffer_Release(&view);
        if (!fits) refuse("the file ends before byte " + std::to_string(at + size));
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

    std::vector<int> thread_ids() const {
        const std::vector<pid_t> ids = executor_.thread_ids();
        return {ids.begin(), ids.end()};
    }

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
        return edge::Executor(path, config_of(config), tensors_of(tensors), limits, members, isa,
                              u32(activation_bits, "activation_bits"), placements_of(plan),
                              kv_dtype == "int8" ? edge::KvType::int8 : edge::KvType::f16);
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

}  // namespace

NB_MODULE(_native, m) {
    m.attr("SOURCES") = EDGE_SOURCES;
    m.def("isas", &edge::available_isas, "Instruction sets that this machine runs, best first.");

    nb::class_<PyExecutor>(m, "Executor")
        .def(nb::init<const std::string&, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                      nb::handle, const std::string&, nb::handle, nb::handle, const std::string&>(),
             "path"_a, "config"_a, "tensors"_a, nb::kw_only(), "threads"_a, "slots"_a, "blocks"_a, "context"_a,
             "step_tokens"_a, "isa"_a, "activation_bits"_a, "plan"_a, "kv_dtype"_a)
        .def_prop_ro("isa", &PyExecutor::isa)
        .def("residency", &PyExecutor::residency)
        .def("read_file", &PyExecutor::read_file, "offset"_a, "into"_a)
        .def("submit", &PyExecutor::submit, "plan"_a)
        .def("allow", &PyExecutor::allow, "slot"_a, "step"_a, "mask"_a.none())
        .def("collect", &PyExecutor::collect)
        .def("logits", &PyExecutor::logits, "slot"_a)
        .def("worker_seconds", &PyExecutor::worker_seconds)
        .def("thread_ids", &PyExecutor::thread_ids)
        .def_prop_ro("block_bytes", &PyExecutor::block_bytes)
        .def("read_block", &PyExecutor::read_block, "block"_a)
        .def("write_block", &PyExecutor::write_block, "block"_a, "content"_a)
        .def("release", &PyExecutor::release)
        .def("close", &PyExecutor::close);

    edge::python::bind_kernels(m);
}
