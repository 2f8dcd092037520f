#include "sampler.h"

#include <algorithm>

#include "philox.h"

namespace edge {
namespace {

constexpr double kAll = 750.0;

struct Later {
    const float* logits;
    bool operator()(uint32_t a, uint32_t b) const { return logits[a] != logits[b] ? logits[a] < logits[b] : a > b; }
};

}  // namespace

bool Sampling::stops(uint32_t token) const {
    const auto end = stop_ids.begin() + stop_count;
    return std::find(stop_ids.begin(), end, token) != end;
}

Sampler::Sampler(uint32_t vocab) : weights_(vocab) { order_.reserve(vocab); }

std::optional<uint32_t> Sampler::operator()(const Kernels& kernels, const float* logits, const Sampling& sampling,
                                            uint32_t position) {
    const auto vocab = static_cast<uint32_t>(weights_.size());
    const Peak peak = kernels.peak(logits, vocab);
    if (!peak.finite) return std::nullopt;
    if (sampling.temperature == 0.0 || sampling.top_k == 1) return peak.id;
    const double total = kernels.softmax_weights(logits, vocab, peak.value, sampling.temperature, weights_.data());
    const double chance = uniform(sampling.seed, position);
    // Sorting the vocabulary would cost more than the model's head: sort only what is near the peak, and more of it
    // while that does not decide. Beyond kAll temperatures every weight is zero.
    for (const double reach : {8.0, 24.0, 120.0, kAll}) {
        collect(logits, static_cast<double>(peak.value) - reach * sampling.temperature);
        if (const auto token = draw(sampling, total, chance, reach == kAll)) return token;
    }
    return peak.id;  // never: the last draw decides
}

void Sampler::collect(const float* logits, double least) {
    order_.clear();
    for (uint32_t id = 0; id < weights_.size(); ++id)
        if (static_cast<double>(logits[id]) >= least) order_.push_back(id);
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
