#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

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
    // Kernels before 5.14 do not know POPULATE_READ; there the first step takes the page faults.
    if (::madvise(address, size_, MADV_POPULATE_READ) != 0) ::madvise(address, size_, MADV_WILLNEED);
}

MappedFile::~MappedFile() { ::munmap(const_cast<uint8_t*>(data_), size_); }

}  // namespace edge
