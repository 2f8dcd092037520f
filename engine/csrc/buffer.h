// Zeroed anonymous memory that costs nothing until it is touched; huge pages where the system gives them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace edge {

template <class T>
class Buffer {
  public:
    Buffer() = default;

    // Throws std::bad_alloc if the system refuses the address space.
    explicit Buffer(size_t count) : count_(count) {
        if (count == 0) return;
        if (count > (std::numeric_limits<size_t>::max() >> 1) / sizeof(T)) throw std::bad_alloc();
        void* address = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED) throw std::bad_alloc();
        ::madvise(address, bytes(), MADV_HUGEPAGE);
        data_ = static_cast<T*>(address);
    }

    ~Buffer() {
        if (data_) ::munmap(data_, bytes());
    }

    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }

    // Takes the page faults of these bytes now. Kernels before 5.14 cannot; there the first write does.
    static void populate(const void* from, size_t nbytes) {
        constexpr uintptr_t page = 4096;
        const uintptr_t begin = reinterpret_cast<uintptr_t>(from) & ~(page - 1);
        const uintptr_t end = reinterpret_cast<uintptr_t>(from) + nbytes;
        ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
    }

    // Gives the pages back to the system; what is read of them next is zero.
    void release() const {
        if (data_) ::madvise(data_, bytes(), MADV_DONTNEED);
    }

    T* data() const { return data_; }
    size_t size() const { return count_; }

  private:
    size_t bytes() const { return count_ * sizeof(T); }

    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace edge
