// The one piece of memory that steps run in, divided by a plan made before anything runs (engine/model/layout.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "buffer.h"

namespace edge {

struct Placement {
    std::string name;
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    uint32_t copies = 1;  // one for each thread
    uint64_t stride = 0;  // bytes from one copy to the next
};

class Arena {
  public:
    static constexpr size_t kAlign = 64;

    // Without a plan every piece is an allocation of its own: for tests. Throws std::invalid_argument for a plan that
    // cannot be, std::bad_alloc.
    explicit Arena(std::vector<Placement> plan);

    // A piece, zero at first. Throws std::invalid_argument naming it where the plan has it not at all, or in another
    // size than is needed here.
    template <class T>
    T* take(const std::string& name, size_t count, uint32_t copy = 0) {
        return reinterpret_cast<T*>(piece(name, count * sizeof(T), copy));
    }
    // Throws std::invalid_argument naming a piece of the plan that nobody took.
    void expect_all_taken() const;

    // Takes the page faults of these bytes now.
    void populate(const void* from, size_t nbytes) const { Buffer<uint8_t>::populate(from, nbytes); }
    // Gives all pages back to the system: every piece is zero where it is next read.
    void release() const;
    size_t size() const { return memory_.size(); }

  private:
    struct Piece {
        Placement placement;
        uint32_t taken = 0;
    };

    uint8_t* piece(const std::string& name, size_t nbytes, uint32_t copy);

    std::vector<Piece> pieces_;
    const bool planned_;
    Buffer<uint8_t> memory_;
    std::vector<Buffer<uint8_t>> own_;  // without a plan
};

}  // namespace edge
