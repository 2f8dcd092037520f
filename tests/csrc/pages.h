// What the kernel tells of a mapping.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>

namespace edge::test {

inline bool system_has_huge_pages() { return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good(); }

// Whether the mapping that begins at `address` asks for huge pages (proc_pid_smaps(5), VmFlags: hg). False where none
// begins there.
inline bool asks_for_huge_pages(const void* address) {
    char first[32];
    std::snprintf(first, sizeof first, "%lx-", reinterpret_cast<unsigned long>(address));
    std::ifstream maps("/proc/self/smaps");
    bool within = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.rfind(first, 0) == 0) within = true;
        if (within && line.rfind("VmFlags:", 0) == 0) return line.find(" hg") != std::string::npos;
    }
    return false;
}

}  // namespace edge::test
