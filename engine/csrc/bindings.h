// The parts of engine._native beside the executor.
#pragma once

#include <nanobind/nanobind.h>

namespace edge::python {

// Single kernels for tests, and the packer.
void bind_kernels(nanobind::module_& m);

}  // namespace edge::python
