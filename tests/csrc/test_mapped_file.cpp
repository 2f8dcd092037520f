// What a mapping brings into memory before anybody reads it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "check.h"
#include "mapped_file.h"
#include "pages.h"

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

TEST(mapped_file_asks_for_huge_pages) {
    if (!test::system_has_huge_pages()) return;
    char name[] = "/tmp/edge-mapped-XXXXXX";
    const int file = ::mkstemp(name);
    CHECK(file >= 0 && ::ftruncate(file, off_t{8} << 20) == 0);
    ::close(file);
    const MappedFile mapped(name);
    ::unlink(name);
    CHECK(test::asks_for_huge_pages(mapped.data()));
}

// What a process says and how it ends that reads a mapping after its file was cut short.
TEST(mapped_file_cut_short_under_its_reader_says_so_before_the_signal_does_its_work) {
    char name[] = "/tmp/edge-mapped-XXXXXX";
    const int file = ::mkstemp(name);
    CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(kPages * page_size())) == 0);
    int ends[2];
    CHECK(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        const MappedFile mapped(name);
        if (::ftruncate(file, static_cast<off_t>(page_size())) != 0) ::_exit(0);
        touch_pages(mapped.data(), mapped.size());
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string told;
    char buffer[4096];
    for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
        told.append(buffer, static_cast<size_t>(got));
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    ::unlink(name);
    ::close(file);
    CHECK(status != 0);  // by the signal, or by what a sanitizer does in its place
    CHECK(told.find("{\"level\":\"fatal\",\"event\":\"weights_lost\",\"image\":\"" + std::string(name)) == 0);
    CHECK(told.find("\"}\n") != std::string::npos);
}

TEST(mapped_file_copies_what_lies_within_it_alone) {
    char name[] = "/tmp/edge-mapped-XXXXXX";
    const int file = ::mkstemp(name);
    CHECK(file >= 0 && ::write(file, "0123456789", 10) == 10);
    ::close(file);
    const MappedFile mapped(name);
    ::unlink(name);
    uint8_t out[4] = {};
    mapped.copy(6, 4, out);
    CHECK(std::string(reinterpret_cast<char*>(out), 4) == "6789");
    for (const size_t offset : {size_t{7}, size_t{11}, ~size_t{0}})
        CHECK(!test::refusal<std::out_of_range>([&] { mapped.copy(offset, 4, out); }).empty());
}

}  // namespace
}  // namespace edge
