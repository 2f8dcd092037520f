#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#ifndef EHWPOISON
#define EHWPOISON 133
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace edge {
namespace {

struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

[[noreturn]] void fail(const std::string& path, const char* what) {
    throw std::runtime_error(path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

void touch_pages(const uint8_t* from, size_t nbytes) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    for (size_t at = 0; at < nbytes; at += page) static_cast<void>(static_cast<const volatile uint8_t*>(from)[at]);
}

MappedFile::MappedFile(const std::string& path) {
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.fd < 0) fail(path, "cannot open");
    struct stat status{};
    if (::fstat(file.fd, &status) != 0) fail(path, "cannot stat");
    if (!S_ISREG(status.st_mode)) throw std::runtime_error(path + ": not a regular file");
    if (status.st_size <= 0) throw std::runtime_error(path + ": the file is empty");
    size_ = static_cast<size_t>(status.st_size);
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
    if (address == MAP_FAILED) fail(path, "cannot map");
    data_ = static_cast<const uint8_t*>(address);
    note_.emplace(path, data_, size_);
    resident_before_ = resident();
    const auto begun = std::chrono::steady_clock::now();
    ::madvise(address, size_, MADV_HUGEPAGE);  // some file systems have huge pages, others ignore it
    // Kernels before 5.14 do not know POPULATE_READ. Where a page cannot be had, to touch it would end the process.
    if (::madvise(address, size_, MADV_POPULATE_READ) != 0) {
        if (errno == EFAULT || errno == EHWPOISON) {
            ::munmap(address, size_);
            throw std::runtime_error(path +
                                     ": it was cut short just now, or the disk cannot read it; look for disk errors in "
                                     "the kernel's log, and run engine pack again");
        }
        ::madvise(address, size_, MADV_WILLNEED);
        touch_pages(data_, size_);
    }
    populate_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double MappedFile::resident() const {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((size_ + page - 1) / page);
    if (::mincore(const_cast<uint8_t*>(data_), size_, pages.data()) != 0) return 0.0;
    const auto there = std::count_if(pages.begin(), pages.end(), [](unsigned char bits) { return (bits & 1) != 0; });
    return static_cast<double>(there) / static_cast<double>(pages.size());
}

void MappedFile::copy(size_t offset, size_t nbytes, uint8_t* out) const {
    if (offset > size_ || nbytes > size_ - offset) throw std::out_of_range("bytes beyond the end of the mapped file");
    std::memcpy(out, data_ + offset, nbytes);
}

MappedFile::~MappedFile() { ::munmap(const_cast<uint8_t*>(data_), size_); }

}  // namespace edge
