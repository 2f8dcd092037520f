// A whole file mapped read-only and shared, so that N processes hold its bytes once, in the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "bus_fault.h"

namespace edge {

// Reads one byte of each page of a mapping, which takes their faults now. `from` is where a page begins.
void touch_pages(const uint8_t* from, size_t nbytes);

class MappedFile {
  public:
    // Throws std::runtime_error naming the path and the system's reason; also where pages of it cannot be read.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

    // Throws std::out_of_range beyond its end.
    void copy(size_t offset, size_t nbytes, uint8_t* out) const;

    // The share of its pages that are in memory now, by mincore(2); it costs some 14 ms a GiB.
    double resident() const;
    // The same before the constructor had them read, and the seconds that this took.
    double resident_before() const { return resident_before_; }
    double populate_s() const { return populate_s_; }

  private:
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    double resident_before_ = 0.0;
    double populate_s_ = 0.0;
    std::optional<BusFaultNote> note_;
};

}  // namespace edge
