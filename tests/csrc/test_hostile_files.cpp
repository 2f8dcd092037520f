// Tensor tables and weights that a damaged or hostile file would give: an executor is refused by an exception, or it
// runs and stays within its memory. The sanitizers look on.
#include <unistd.h>

#include <cstdio>
#include <random>

#include "check.h"
#include "executor.h"
#include "tiny_model.h"

namespace edge {
namespace {

using test::TinyModel;

constexpr Limits kLimits{.slots = 2, .blocks = 8, .context = 64, .step_tokens = 32};
const char* const kTypes[] = {"F32", "F16", "Q4_1", "Q8_0", "Q4_1x16", "Q8_0x16", "Q6_K", ""};

// A number such as a header may have in place of `from`.
uint64_t damaged(uint64_t from, std::mt19937& random) {
    switch (random() % 6) {
        case 0: return from ^ uint64_t{1} << random() % 64;
        case 1: return from + random() % 65 - 32;
        case 2: return ~uint64_t{0} - random() % 3;
        case 3: return random() % 200;
        case 4: return uint64_t{1} << random() % 64;
        default: return from;
    }
}

void damage(TensorEntry& entry, std::mt19937& random) {
    switch (random() % 5) {
        case 0: entry.offset = damaged(entry.offset, random); break;
        case 1: entry.nbytes = damaged(entry.nbytes, random); break;
        case 2: entry.shape[random() % entry.shape.size()] = damaged(entry.shape[0], random); break;
        case 3: entry.dtype = kTypes[random() % std::size(kTypes)]; break;
        default: entry.name[random() % entry.name.size()] ^= static_cast<char>(1 << random() % 8);
    }
}

// Whether an executor came to be; it then runs a prompt and a few steps.
bool runs(const std::string& path, const ModelConfig& config, const std::vector<TensorEntry>& tensors) {
    try {
        Executor executor(path, config, tensors, kLimits, 1, "");
        const std::vector<uint32_t> prompt(20, 7), blocks{3, 1, 4, 2};
        const Sampling sampling{.temperature = 0.9, .top_p = 0.9, .logprobs = true, .top_logprobs = kMaxTop};
        executor.submit(0, {{.slot = 0,
                             .start = 0,
                             .tokens = prompt,
                             .blocks = blocks,
                             .sample = true,
                             .opens = &sampling,
                             .history = {}}});
        const Job& first = executor.collect();
        bool goes_on = first.outcomes[0].finish == Finish::none;
        for (uint32_t step = 0; goes_on && step < 3; ++step) {
            executor.submit(step + 1, {{.slot = 0,
                                        .start = 20 + step,
                                        .tokens = {},
                                        .blocks = blocks,
                                        .sample = true,
                                        .opens = nullptr,
                                        .history = {}}});
            goes_on = executor.collect().outcomes[0].finish == Finish::none;
        }
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    } catch (const std::runtime_error&) {
        return false;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

TEST(hostile_tensor_tables_are_refused_or_run) {
    std::mt19937 random(17);
    uint32_t ran = 0, refused = 0;
    for (const bool packed : {false, true}) {
        const TinyModel model(packed);
        for (uint32_t round = 0; round < 400; ++round) {
            std::vector<TensorEntry> tensors = model.tensors;
            for (uint32_t changes = 1 + random() % 2; changes != 0; --changes)
                damage(tensors[random() % tensors.size()], random);
            ++(runs(model.path, model.config, tensors) ? ran : refused);
        }
    }
    CHECK(ran > 20 && refused > 200);
}

TEST(hostile_configurations_are_refused_or_run) {
    std::mt19937 random(18);
    const TinyModel model;
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 300; ++round) {
        ModelConfig config = model.config;
        uint32_t* const numbers[] = {&config.layers,   &config.hidden,   &config.ffn,  &config.heads,
                                     &config.kv_heads, &config.head_dim, &config.vocab};
        uint32_t& number = *numbers[random() % std::size(numbers)];
        number = static_cast<uint32_t>(damaged(number, random));
        refused += !runs(model.path, config, model.tensors);
    }
    CHECK(refused > 150);
}

TEST(weights_of_any_bytes_run) {
    std::mt19937 random(19);
    for (const bool packed : {false, true}) {
        const TinyModel model(packed);
        for (uint32_t round = 0; round < 40; ++round) {
            std::FILE* file = std::fopen(model.path.c_str(), "r+b");
            CHECK(file != nullptr);
            std::fseek(file, 0, SEEK_END);
            const long size = std::ftell(file);
            for (uint32_t flips = 0; flips < 200; ++flips) {
                std::fseek(file, static_cast<long>(random() % static_cast<unsigned long>(size)), SEEK_SET);
                std::fputc(static_cast<int>(random() % 256), file);
            }
            std::fclose(file);
            CHECK(runs(model.path, model.config, model.tensors));
        }
    }
}

TEST(files_that_are_cut_are_refused) {
    const TinyModel model;
    const TensorEntry& last = model.tensors.back();
    for (const uint64_t size : {last.offset + last.nbytes - 1, last.offset, uint64_t{1}, uint64_t{0}}) {
        CHECK(::truncate(model.path.c_str(), static_cast<off_t>(size)) == 0);
        CHECK(!runs(model.path, model.config, model.tensors));
    }
}

}  // namespace
}  // namespace edge
