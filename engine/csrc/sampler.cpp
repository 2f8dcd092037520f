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

Sampler::Sampler(uint32_t vocab) : adjusted_(vocab), weights_(vocab) { order_.reserve(vocab); }

std::optional<uint32_t> Sampler::operator()(const Kernels& kernels, const float* logits, const Sampling& sampling,
                                            const Seen& seen, uint32_t position) {
    const auto vocab = static_cast<uint32_t>(weights_.size());
    Peak peak = kernels.peak(logits, vocab);
    if (!peak.finite) return std::nullopt;
    if (sampling.bias_count != 0 || sampling.penalises() || sampling.holds(position)) {
        std::copy_n(logits, vocab, adjusted_.data());
        adjust(sampling, seen, position);
        logits = adjusted_.data();
        peak = kernels.peak(logits, vocab);
    }
    if (sampling.temperature == 0.0 || sampling.top_k == 1) return peak.id;
    double total = kernels.softmax_weights(logits, vocab, peak.value, sampling.temperature, weights_.data());
    const double chance = uniform(sampling.seed, position);
    if (sampling.min_p > 0.0) {  // the peak's weight is 1
        collect(logits, [&](uint32_t id) { return weights_[id] >= sampling.min_p; });
        total = 0.0;
        for (const uint32_t id : order_) total += weights_[id];
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
void Sampler::adjust(const Sampling& sampling, const Seen& seen, uint32_t position) {
    const auto set = [&](uint32_t id, float value) { adjusted_[id] = std::clamp(value, -kLargest, kLargest); };
    for (uint32_t i = 0; i < sampling.bias_count; ++i)
        set(sampling.bias_ids[i], adjusted_[sampling.bias_ids[i]] + sampling.biases[i]);
    if (sampling.penalises())
        for (const uint32_t id : seen.ids()) {
            const float logit = adjusted_[id];
            set(id, logit > 0.0f ? logit / sampling.repetition : logit * sampling.repetition);
            const uint32_t count = seen.sampled(id);
            if (count == 0) continue;
            set(id, adjusted_[id] - sampling.frequency * static_cast<float>(count));
            set(id, adjusted_[id] - sampling.presence);
        }
    if (sampling.holds(position))
        for (uint32_t i = 0; i < sampling.stop_count; ++i) adjusted_[sampling.stop_ids[i]] = -kLargest;
}

Logprobs Sampler::logprobs(const Kernels& kernels, const float* logits, uint32_t token, uint32_t top) {
    const auto vocab = static_cast<uint32_t>(weights_.size());
    const double most = kernels.peak(logits, vocab).value;
    const double shift =
        most + std::log(kernels.softmax_weights(logits, vocab, static_cast<float>(most), 1.0, weights_.data()));
    Logprobs found{static_cast<double>(logits[token]) - shift, 0, {}};
    const uint32_t count = std::min(top, vocab);
    // Insertion into a short sorted list: nearly every id ends at the first comparison.
    for (uint32_t id = 0; id < vocab && count != 0; ++id) {
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
    order_.clear();
    for (uint32_t id = 0; id < weights_.size(); ++id)
        if (keep(id)) order_.push_back(id);
    logits_ = logits;
    ranked_ = 0;
    std::make_heap(order_.begin(), order_.end(), Later{logits});
}

// The id at `rank` by descending logit. Few are asked for, so what lies behind them is left unsorted.
uint32_t Sampler::ranked(size_t rank) {
    for (; ranked_ <= rank; ++ranked_)
        std::pop_heap(order_.begin(), order_.end() - static_cast<std::ptrdiff_t>(ranked_), Later{logits_});
    return order_[order_.size() - 1 - rank];
}

// Nothing if the prefix in order_ is too short to tell; `complete` says that what it lacks has no weight.
std::optional<uint32_t> Sampler::draw(const Sampling& sampling, double total, double chance, bool complete) {
    size_t kept = order_.size();
    if (sampling.top_k != 0 && sampling.top_k < weights_.size()) {
        if (kept < sampling.top_k && !complete) return std::nullopt;
        kept = std::min<size_t>(kept, sampling.top_k);
        total = 0.0;
        for (size_t i = 0; i < kept; ++i) total += weights_[ranked(i)];
        complete = true;
    }
    double mass = total;
    if (sampling.top_p < 1.0) {
        size_t i = 0;
        for (mass = 0.0; i < kept && mass < sampling.top_p * total; ++i) mass += weights_[ranked(i)];
        if (mass < sampling.top_p * total && !complete) return std::nullopt;
        kept = i;
    }
    double reached = 0.0;
    for (size_t i = 0; i < kept; ++i) {
        reached += weights_[ranked(i)];
        if (reached > chance * mass) return ranked(i);
    }
    return complete ? std::optional(ranked(kept - 1)) : std::nullopt;
}

}  // namespace edge
