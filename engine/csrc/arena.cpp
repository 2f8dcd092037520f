#include "arena.h"

#include <algorithm>
#include <stdexcept>

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
    throw std::invalid_argument("memory plan: '" + name + "' " + what);
}

uint64_t end_of(const Placement& p) {
    uint64_t end = 0;
    if (__builtin_mul_overflow(p.stride, uint64_t{p.copies} - 1, &end) || __builtin_add_overflow(end, p.offset, &end) ||
        __builtin_add_overflow(end, p.nbytes, &end))
        refuse(p.name, "ends beyond all memory");
    return end;
}

size_t checked_size(const std::vector<Placement>& plan) {
    uint64_t size = 0;
    for (const Placement& p : plan) {
        if (p.offset % Arena::kAlign != 0 || p.stride % Arena::kAlign != 0)
            refuse(p.name, "does not begin at a multiple of " + std::to_string(Arena::kAlign) + " bytes");
        if (p.copies == 0 || (p.copies > 1 && p.stride < p.nbytes)) refuse(p.name, "has copies that overlap");
        size = std::max(size, end_of(p));
    }
    return size;
}

}  // namespace

Arena::Arena(std::vector<Placement> plan) : planned_(!plan.empty()), memory_(checked_size(plan)) {
    for (Placement& placement : plan) pieces_.push_back({std::move(placement)});
}

uint8_t* Arena::piece(const std::string& name, size_t nbytes, uint32_t copy) {
    if (!planned_) return own_.emplace_back(nbytes).data();
    const auto found =
        std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return piece.placement.name == name; });
    if (found == pieces_.end()) refuse(name, "is missing");
    const Placement& placement = found->placement;
    if (placement.nbytes != nbytes)
        refuse(name, "has " + std::to_string(placement.nbytes) + " bytes, the kernels need " + std::to_string(nbytes));
    if (copy >= placement.copies) refuse(name, "has no copy " + std::to_string(copy));
    ++found->taken;
    return memory_.data() + placement.offset + copy * placement.stride;
}

void Arena::expect_all_taken() const {
    for (const Piece& piece : pieces_)
        if (piece.taken != piece.placement.copies)
            refuse(piece.placement.name, "was taken " + std::to_string(piece.taken) + " times, planned for " +
                                             std::to_string(piece.placement.copies));
}

void Arena::release() const {
    memory_.release();
    for (const Buffer<uint8_t>& piece : own_) piece.release();
}

}  // namespace edge
