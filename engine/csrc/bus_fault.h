// Why a process dies of SIGBUS: a mapped file was cut short under it, or the disk cannot give its pages any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edge {

// While it lives, a SIGBUS among the bytes of a mapping writes one line (JSON) to standard error that names the file,
// the cause and the remedy. The signal then does what it would have done without: as a rule it ends the process.
class BusFaultNote {
  public:
    // The first one of a process installs the handler. Beyond kMost at once, the rest die without a line.
    BusFaultNote(const std::string& path, const uint8_t* data, size_t nbytes);
    ~BusFaultNote();
    BusFaultNote(const BusFaultNote&) = delete;
    BusFaultNote& operator=(const BusFaultNote&) = delete;

    static constexpr size_t kMost = 32;

  private:
    size_t place_ = kMost;
};

}  // namespace edge
