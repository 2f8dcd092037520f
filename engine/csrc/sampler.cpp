#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "philox.h"

namespace edge {
namespace {

constexpr double kAll = 750.0;
constexpr float kLargest = std::numeric_limits<float>::max();

struct Later {
    const float* logits;
    bool operator()(uint32_t a, uint32_t b) const { return logits[a] != logits[b] ? logits[a] < logits[b] : a > b; }
};

}  // namespace

std::optional<uint32_t> Sampler::operator()(const Kernels& kernels, const float* logits, const Sampling& sampling,
                                            const Seen& seen, uint32_t position, const uint32_t* allowed) {
    Peak peak = kernels.peak(logits, vocab_);
    if (!peak.finite) return std::nullopt;
    if (sampling.bias_count != 0 || sampling.penalises() || sampling.holds(position) || allowed) {
        std::copy_n(logits, vocab_, memory_.adjusted);
        adjust(sampling, seen, position, allowed);
        logits = memory_.adjusted;
        peak = kernels.peak(logits, vocab_);
    }
    if (sampling.temperature == 0.0 || sampling.top_k == 1) return peak.id;
    double total = kernels.softmax_weights(logits, vocab_, peak.value, sampling.temperature, memory_.weights);
    const double chance = uniform(sampling.seed, position);
    if (sampling.min_p > 0.0) {  // the peak's weight is 1
        collect(logits, [&](uint32_t id) { return memory_.weights[id] >= sampling.min_p; });
        total = 0.0;
        for (size_t i = 0; i < count_; ++i) total += memory_.weights[memory_.order[i]];
        return draw(sampling, total, chance, true);
    }
    // Sorting the vocabulary would cost more than the model's head: sort only what is near the peak, and more of it
    // while that does not decide. Beyond kAll temperatures every weight is zero.
    for (const double reach : {8.0, 24.0, 120.0, kAll}) {
        const double least = static_cast<double>(peak.value) - reach * sampling.temperature;
        collect(logits, [&](uint32_t id) { return static_cast<double>(logits[id]) >= least; });
        if (const auto token = draw(sampling, total, chance, reach == kAll)) return token;
    }
    return peak.id;  // never: the last draw decides
}

// Every operation is rounded to float once; the sum and the product of finite numbers stay finite.
void Sampler::adjust(const Sampling& sampling, const Seen& seen, uint32_t position, const uint32_t* allowed) {
    const auto set = [&](uint32_t id, float value) { memory_.adjusted[id] = std::clamp(value, -kLargest, kLargest); };
    for (uint32_t i = 0; i < sampling.bias_count; ++i)
        set(sampling.bias_ids[i], memory_.adjusted[sampling.bias_ids[i]] + sampling.biases[i]);
    if (sampling.penalises())
        for (const uint32_t id : seen.ids()) {
            const float logit = memory_.adjusted[id];
            set(id, logit > 0.0f ? logit / sampling.repetition : logit * sampling.repetition);
            const uint32_t count = seen.sampled(id);
            if (count == 0) continue;
            set(id, memory_.adjusted[id] - sampling.frequency * static_cast<float>(count));
            set(id, memory_.adjusted[id] - sampling.presence);
        }
    if (sampling.holds(position))
        for (uint32_t i = 0; i < sampling.stop_count; ++i) memory_.adjusted[sampling.stop_ids[i]] = -kLargest;
    for (uint32_t id = 0; allowed && id < vocab_; ++id)
        if (!(allowed[id / 32] >> id % 32 & 1)) memory_.adjusted[id] = -kLargest;
}

Logprobs Sampler::logprobs(const Kernels& kernels, const float* logits, uint32_t token, uint32_t top) {
    const double most = kernels.peak(logits, vocab_).value;
    const double shift =
        most + std::log(kernels.softmax_weights(logits, vocab_, static_cast<float>(most), 1.0, memory_.weights));
    Logprobs found{static_cast<double>(logits[token]) - shift, 0, {}};
    const uint32_t count = std::min(top, vocab_);
    // Insertion into a short sorted list: nearly every id ends at the first comparison.
    for (uint32_t id = 0; id < vocab_ && count != 0; ++id) {
        if (found.count == count && logits[id] <= logits[found.top[count - 1].id]) continue;
        uint32_t at = found.count < count ? found.count++ : count - 1;
        for (; at > 0 && logits[found.top[at - 1].id] < logits[id]; --at) found.top[at] = found.top[at - 1];
        found.top[at].id = id;
    }
    for (uint32_t i = 0; i < found.count; ++i)
        found.top[i].value = static_cast<double>(logits[found.top[i].id]) - shift;
    return found;
}

template <class Keep>
void Sampler::collect(const float* logits, Keep&& keep) {
    count_ = 0;
    for (uint32_t id = 0; id < vocab_; ++id)
        if (keep(id)) memory_.order[count_++] = id;
    logits_ = logits;
    ranked_ = 0;
    std::make_heap(memory_.order, memory_.order + count_, Later{logits});
}

// The id at `rank` by descending logit. Few are asked for, so what lies behind them is left unsorted.
uint32_t Sampler::ranked(size_t rank) {
    for (; ranked_ <= rank; ++ranked_) std::pop_heap(memory_.order, memory_.order + count_ - ranked_, Later{logits_});
    return memory_.order[count_ - 1 - rank];
}

// Nothing if the prefix in memory_.order is too short to tell; `complete` says that what it lacks has no weight.
std::optional<uint32_t> Sampler::draw(const Sampling& sampling, double total, double chance, bool complete) {
    size_t kept = count_;
    if (sampling.top_k != 0 && sampling.top_k < vocab_) {
        if (kept < sampling.top_k && !complete) return std::nullopt;
        kept = std::min<size_t>(kept, sampling.top_k);
        total = 0.0;
        for (size_t i = 0; i < kept; ++i) total += memory_.weights[ranked(i)];
        complete = true;
    }
    double mass = total;
    if (sampling.top_p < 1.0) {
        size_t i = 0;
        for (mass = 0.0; i < kept && mass < sampling.top_p * total; ++i) mass += memory_.weights[ranked(i)];
        if (mass < sampling.top_p * total && !complete) return std::nullopt;
        kept = i;
    }
    double reached = 0.0;
    for (size_t i = 0; i < kept; ++i) {
        reached += memory_.weights[ranked(i)];
        if (reached > chance * mass) return ranked(i);
    }
    return complete ? std::optional(ranked(kept - 1)) : std::nullopt;
}

}  // namespace edge
