// Python's values as the executor's: every one that does not fit is refused with std::invalid_argument by its name.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "arena.h"
#include "model.h"
#include "sampling.h"

namespace edge::python {

namespace nb = nanobind;

[[noreturn]] void refuse(const std::string& what);

// An integer in [0, most].
uint64_t unsigned_of(nb::handle value, const char* name, uint64_t most);
uint32_t u32(nb::handle value, const char* name);
uint64_t u64(nb::handle value, const char* name);
// Appends the integers of a tuple.
void append(nb::handle values, const char* name, std::vector<uint32_t>& out);

Sampling sampling_of(nb::handle from);
// The words of a mask, kept in `words`; null for None.
const uint32_t* mask_of(nb::handle mask, uint32_t vocab, std::vector<uint32_t>& words);
ModelConfig config_of(nb::handle from);
std::vector<TensorEntry> tensors_of(nb::handle tensors);
std::vector<Placement> placements_of(nb::handle plan);

// (of the sampled token, ((id, value), ...))
nb::tuple view(const Logprobs& logprobs);

}  // namespace edge::python
