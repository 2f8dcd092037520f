// What a mapping brings into memory before anybody reads it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "mapped_file.h"

namespace edge {
namespace {

constexpr size_t kPages = 64;

size_t page_size() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

long faults() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

TEST(mapped_file_touching_takes_the_fault_of_every_page) {
    const size_t nbytes = kPages * page_size();
    void* memory = ::mmap(nullptr, nbytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    ::madvise(memory, nbytes, MADV_NOHUGEPAGE);
    const long before = faults();
    touch_pages(static_cast<const uint8_t*>(memory), nbytes - 1);
    const long touched = faults();
    CHECK(touched - before >= static_cast<long>(kPages));
    touch_pages(static_cast<const uint8_t*>(memory), nbytes);
    CHECK(faults() - touched < static_cast<long>(kPages) / 2);
    ::munmap(memory, nbytes);
}

TEST(mapped_file_is_in_memory_once_it_is_mapped) {
    char name[] = "/tmp/edge-mapped-XXXXXX";
    const int file = ::mkstemp(name);
    CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(kPages * page_size() + 1)) == 0);
    ::close(file);
    const MappedFile mapped(name);
    ::unlink(name);
    CHECK(mapped.size() == kPages * page_size() + 1);
    CHECK(mapped.resident() == 1.0);
}

}  // namespace
}  // namespace edge
