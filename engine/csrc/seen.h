// The tokens of a sequence, as penalties count them.
#pragma once

#include <cstdint>
#include <span>

namespace edge {

// Over memory of a vocabulary that it does not own and that is zero at first.
class Seen {
  public:
    Seen() = default;
    // words [vocab], ids [most]: the different tokens of a sequence are at most `most`.
    Seen(uint32_t* words, uint32_t* ids) : words_(words), ids_(ids) {}

    // Costs what was seen, not the vocabulary.
    void clear() {
        for (const uint32_t id : ids()) words_[id] = 0;
        size_ = 0;
    }
    void add_prompt(uint32_t id) {
        note(id);
        words_[id] |= kPrompt;
    }
    void add_sampled(uint32_t id) {
        note(id);
        ++words_[id];
    }

    // Different tokens, in the order in which they came first.
    std::span<const uint32_t> ids() const { return {ids_, size_}; }
    // How often it was sampled; what only the prompt has, never.
    uint32_t sampled(uint32_t id) const { return words_[id] & ~kPrompt; }

  private:
    static constexpr uint32_t kPrompt = 1u << 31;

    void note(uint32_t id) {
        if (words_[id] == 0) ids_[size_++] = id;
    }

    uint32_t* words_ = nullptr;
    uint32_t* ids_ = nullptr;
    uint32_t size_ = 0;
};

}  // namespace edge
