#include <algorithm>
#include <cmath>
#include <optional>

#include "check.h"
#include "executor.h"
#include "tiny_model.h"

namespace edge {
namespace {

using test::refusal;
using test::TinyModel;

constexpr Limits kLimits{.slots = 4, .blocks = 32, .context = 160, .step_tokens = 96};

// Owns what the rows of a sequence point to.
struct Sequence {
    uint32_t slot;
    std::vector<uint32_t> prompt;
    std::vector<uint32_t> blocks;
    Sampling sampling{.temperature = 0.8, .top_p = 0.9, .seed = 11};

    PlanRow prefill(uint32_t start, uint32_t count) const {
        return {slot,
                start,
                {prompt.data() + start, count},
                blocks,
                start + count == prompt.size(),
                start == 0 ? &sampling : nullptr,
                {}};
    }
    PlanRow decode(uint32_t step) const {
        return {slot, static_cast<uint32_t>(prompt.size()) + step, {}, blocks, true, nullptr, {}};
    }
};

Sequence sequence(uint32_t slot, uint32_t length) {
    Sequence made{.slot = slot, .prompt = {}, .blocks = {}};
    for (uint32_t i = 0; i < length; ++i) made.prompt.push_back((i * 31 + length) % 77);
    for (uint32_t i = 0; i < 8; ++i) made.blocks.push_back((slot * 8 + i * 3) % 8 + slot * 8);
    return made;
}

std::vector<float> logits_of(const Executor& executor, uint32_t slot) {
    const float* values = executor.logits(slot);
    CHECK(values != nullptr);
    for (uint32_t i = 0; i < executor.vocab(); ++i) CHECK(std::isfinite(values[i]));
    return {values, values + executor.vocab()};
}

// Prefill whole, then `steps` decode rows, collecting each before the next.
std::vector<uint32_t> alone(Executor& executor, const Sequence& of, uint32_t steps) {
    std::vector<uint32_t> tokens;
    executor.submit(0, {of.prefill(0, static_cast<uint32_t>(of.prompt.size()))});
    tokens.push_back(executor.collect().outcomes[0].token);
    for (uint32_t step = 0; step < steps; ++step) {
        executor.submit(step + 1, {of.decode(step)});
        tokens.push_back(executor.collect().outcomes[0].token);
    }
    return tokens;
}

void gives_one_result(bool packed, uint32_t activation_bits, KvType kv_type = KvType::f16) {
    const TinyModel model(packed);
    for (const std::string& isa : available_isas()) {
        std::optional<std::vector<uint32_t>> tokens;
        std::vector<float> logits;
        for (const uint32_t threads : {1u, 2u, 3u}) {
            Executor executor(model.path, model.config, model.tensors, kLimits, threads, isa, activation_bits, {},
                              kv_type);
            Sequence whole = sequence(0, 90);
            const std::vector<uint32_t> found = alone(executor, whole, 10);
            if (!tokens) tokens = found, logits = logits_of(executor, 0);
            CHECK(found == *tokens && logits_of(executor, 0) == logits);

            Sequence chunked = sequence(0, 90), other = sequence(1, 40);
            std::copy(whole.prompt.begin(), whole.prompt.end(), chunked.prompt.begin());
            chunked.slot = 2, chunked.blocks = {16, 23, 17, 22, 18, 21, 19, 20};
            executor.submit(20, {chunked.prefill(0, 30), other.prefill(0, 40)});
            executor.submit(21, {other.decode(0), chunked.prefill(30, 60)});
            executor.collect();
            CHECK(executor.collect().outcomes[1].token == found[0]);
            for (uint32_t step = 0; step < 10; ++step) {
                executor.submit(22, {chunked.decode(step), other.decode(step + 1)});
                CHECK(executor.collect().outcomes[0].token == found[step + 1]);
            }
            CHECK(logits_of(executor, 2) == logits);
        }
    }
}

TEST(executor_gives_one_result_for_every_way_of_cutting_and_threading) { gives_one_result(false, 16); }
TEST(executor_gives_one_result_for_every_way_with_packed_weights) {
    gives_one_result(true, 16);
    gives_one_result(true, 8);
}
TEST(executor_gives_one_result_for_every_way_with_kv_of_eight_bits) { gives_one_result(true, 16, KvType::int8); }

TEST(executor_pipelines_two_plans_and_stops_at_stop_ids) {
    const TinyModel model;
    for (const uint32_t threads : {1u, 3u}) {
        Executor executor(model.path, model.config, model.tensors, kLimits, threads, "");
        Sequence of = sequence(3, 17);
        const std::vector<uint32_t> expected = alone(executor, of, 40);
        size_t last = 5;
        while (std::find(expected.begin(), expected.begin() + last, expected[last]) != expected.begin() + last) ++last;
        of.sampling.stop_ids[0] = expected[last];
        of.sampling.stop_count = 1;
        executor.submit(0, {of.prefill(0, 17)});
        for (uint32_t step = 0; step < 40; ++step) {
            executor.submit(step + 1, {of.decode(step)});
            const std::string full = refusal<std::runtime_error>([&] { executor.submit(99, {of.decode(step + 1)}); });
            CHECK(full.find("2 plans are submitted") != std::string::npos);
            const Job& job = executor.collect();
            CHECK(job.step == step && job.started <= job.ended);
            const Job::Outcome& outcome = job.outcomes[0];
            CHECK(outcome.sampled == (step <= last));
            if (outcome.sampled) CHECK(outcome.token == expected[step]);
            CHECK((outcome.finish == Finish::stop) == (step == last));
        }
        executor.close();
        executor.close();
        CHECK(!refusal<std::runtime_error>([&] { executor.collect(); }).empty());
    }
}

TEST(executor_destroyed_with_plans_out_waits_for_them) {
    const TinyModel model;
    for (uint32_t round = 0; round < 20; ++round) {
        Executor executor(model.path, model.config, model.tensors, kLimits, 1 + round % 3, "");
        const Sequence of = sequence(round % 4, 60);
        if (round % 2 == 0) executor.submit(1, {of.prefill(0, 30)});
        if (round % 4 == 0) executor.submit(2, {of.prefill(30, 30)});
    }
}

TEST(executor_refuses_a_table_that_points_outside_the_file) {
    const TinyModel model;
    for (size_t i = 0; i < model.tensors.size(); ++i)
        for (const uint64_t offset : {uint64_t{1} << 40, ~uint64_t{3}, model.tensors.back().offset + 3904}) {
            std::vector<TensorEntry> tensors = model.tensors;
            tensors[i].offset = offset / 4 * 4;
            const std::string message =
                refusal<std::invalid_argument>([&] { Executor(model.path, model.config, tensors, kLimits, 1, ""); });
            if (offset > uint64_t{1} << 30) CHECK(message.find("outside the file") != std::string::npos);
        }
}

}  // namespace
}  // namespace edge
