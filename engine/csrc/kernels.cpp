#include "kernels.h"

#include <stdexcept>

namespace edge {

extern const Kernels kPortable;
#ifdef EDGE_X86
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif

namespace {

std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found;
#ifdef EDGE_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        found.push_back(&kAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        found.push_back(&kAvx2);
#endif
    found.push_back(&kPortable);
    return found;
}

}  // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const Kernels* kernels : available()) names.emplace_back(kernels->name);
    return names;
}

const Kernels& kernels_for(const std::string& isa) {
    std::string known;
    for (const Kernels* kernels : available()) {
        if (isa.empty() || isa == kernels->name) return *kernels;
        known += known.empty() ? kernels->name : std::string(", ") + kernels->name;
    }
    throw std::invalid_argument("isa '" + isa + "': this machine runs " + known);
}

}  // namespace edge
