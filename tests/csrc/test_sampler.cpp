#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "check.h"
#include "philox.h"
#include "sampler.h"

namespace edge {
namespace {

// The documented order in the plainest way: sort all, walk.
uint32_t plainly(const std::vector<float>& logits, const Sampling& s, uint32_t position) {
    std::vector<uint32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
    if (s.temperature == 0.0) return order[0];
    if (s.top_k != 0) order.resize(std::min<size_t>(order.size(), s.top_k));
    std::vector<double> reached;
    for (const uint32_t id : order)
        reached.push_back((reached.empty() ? 0.0 : reached.back()) +
                          std::exp((double{logits[id]} - logits[order[0]]) / s.temperature));
    size_t kept = 1;
    while (kept < order.size() && reached[kept - 1] < s.top_p * reached.back()) ++kept;
    const double target = uniform(s.seed, position) * reached[kept - 1];
    for (size_t i = 0; i < kept; ++i)
        if (reached[i] > target) return order[i];
    return order[kept - 1];
}

TEST(philox_gives_the_known_answer) {
    CHECK((philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
           std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(sampler_follows_the_documented_order) {
    std::mt19937 random(1);
    for (const uint32_t vocab : {1u, 2u, 50u, 2000u}) {
        std::vector<double> weights(vocab);
        std::vector<uint32_t> order(vocab);
        std::vector<float> adjusted(vocab);
        Sampler sampler(vocab, {weights.data(), order.data(), adjusted.data()});
        std::vector<float> logits(vocab);
        for (int round = 0; round < 200; ++round) {
            std::normal_distribution<float> normal(0.0f, round % 3 == 0 ? 0.1f : 4.0f);
            for (float& logit : logits) logit = normal(random);
            if (round % 5 == 0)
                for (float& logit : logits) logit = std::round(logit);  // many ties
            Sampling sampling;
            sampling.temperature = std::array{0.0, 0.2, 1.0, 3.0}[random() % 4];
            sampling.top_p = std::array{1.0, 0.95, 0.3, 1e-9}[random() % 4];
            sampling.top_k = std::array{0u, 1u, 7u, 5000u}[random() % 4];
            sampling.seed = random();
            const auto position = static_cast<uint32_t>(random() % 8192);
            const auto token = sampler(kernels_for(""), logits.data(), sampling, Seen(), position);
            CHECK(token && *token == plainly(logits, sampling, position));
        }
    }
}

TEST(stop_ids_are_those_named_and_no_more) {
    Sampling sampling;
    CHECK(!sampling.stops(0));
    sampling.stop_count = kMaxStopIds;
    sampling.stop_ids.fill(5);
    sampling.stop_ids.back() = 6;
    CHECK(sampling.stops(5) && sampling.stops(6) && !sampling.stops(0));
}

}  // namespace
}  // namespace edge
