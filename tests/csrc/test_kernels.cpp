#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "f16.h"
#include "kernels.h"
#include "pack.h"
#include "tiny_model.h"

namespace edge {
namespace {

using test::TinyModel;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::q4_1, DType::q8_0};

std::vector<float> normal(size_t n, float deviation, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw(0.0f, deviation);
    std::vector<float> values(n);
    for (float& value : values) value = draw(random);
    return values;
}

TEST(matmul_equals_doubles_and_stays_within_its_memory) {
    constexpr uint32_t rows = 39, cols = 96;
    for (const DType type : kTypes) {
        const std::vector<uint8_t> data = TinyModel::weights(type, rows * cols / kBlockWeights, 5);
        const Matrix matrix{data.data(), type, rows, cols};
        for (const std::string& isa : available_isas()) {
            const Kernels& kernels = kernels_for(isa);
            std::vector<float> exact(size_t{rows} * cols);
            for (uint32_t r = 0; r < rows; ++r) kernels.dequantise(matrix, r, exact.data() + r * cols);
            for (const uint32_t tokens : {1u, 2u, 5u, 6u, 13u, 31u}) {
                const std::vector<float> x = normal(tokens * cols, 1.0f, tokens);
                std::vector<float> scratch(kPanelRows * cols), y(tokens * rows);
                kernels.matmul(matrix, 0, 7, x.data(), cols, tokens, y.data(), rows, scratch.data());
                kernels.matmul(matrix, 7, rows, x.data(), cols, tokens, y.data() + 7, rows, scratch.data());
                for (uint32_t t = 0; t < tokens; ++t)
                    for (uint32_t r = 0; r < rows; ++r) {
                        double sum = 0.0;
                        for (uint32_t k = 0; k < cols; ++k) sum += double{exact[r * cols + k]} * x[t * cols + k];
                        CHECK(std::abs(sum - y[t * rows + r]) < 2e-5);
                    }
            }
        }
    }
}

TEST(every_isa_dequantises_to_the_same_bits_but_for_fusing) {
    for (const DType type : kTypes) {
        const std::vector<uint8_t> data = TinyModel::weights(type, 3, 8);
        const Matrix matrix{data.data(), type, 1, 96};
        std::vector<float> first(96), other(96);
        kernels_for("portable").dequantise(matrix, 0, first.data());
        for (const std::string& isa : available_isas()) {
            kernels_for(isa).dequantise(matrix, 0, other.data());
            for (size_t i = 0; i < first.size(); ++i)
                CHECK(type == DType::q4_1 ? std::abs(first[i] - other[i]) < 1e-7f : first[i] == other[i]);
        }
    }
}

TEST(silu_and_norm_equal_doubles) {
    std::vector<float> x = normal(64, 20.0f, 3);
    x[0] = 0.0f, x[1] = 1e30f, x[2] = -1e30f, x[3] = 87.9f, x[4] = -87.9f, x[5] = 1e-30f;
    const std::vector<float> up = normal(64, 1.0f, 4);
    for (const std::string& isa : available_isas()) {
        const Kernels& kernels = kernels_for(isa);
        std::vector<float> gate = x;
        kernels.silu_mul(gate.data(), up.data(), 64);
        for (size_t i = 0; i < gate.size(); ++i) {
            const double exact = x[i] / (1.0 + std::exp(-double{x[i]})) * up[i];
            CHECK(std::abs(gate[i] - exact) <= 1e-6 * std::abs(exact) + 1e-6);
        }
        std::vector<float> out(64);
        const std::vector<float> values = normal(64, 3.0f, 6);
        kernels.rms_norm(values.data(), up.data(), 64, 1e-5f, out.data());
        double squares = 0.0;
        for (const float value : values) squares += double{value} * value;
        for (size_t i = 0; i < out.size(); ++i)
            CHECK(std::abs(out[i] - values[i] * up[i] / std::sqrt(squares / 64 + 1e-5)) < 1e-5);
    }
}

TEST(halves_survive_a_round_trip) {
    for (uint32_t half = 0; half < 0x10000; ++half) {
        const float value = f16_to_f32(static_cast<uint16_t>(half));
        if (std::isnan(value))
            CHECK((half & 0x7c00) == 0x7c00 && (f32_to_f16(value) & 0x7e00) == 0x7e00);
        else
            CHECK(f32_to_f16(value) == half);
    }
    CHECK(f32_to_f16(65519.0f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00 && f32_to_f16(1e-9f) == 0);
    CHECK(f32_to_f16(1.0f + 0x1p-11f) == 0x3c00 && f32_to_f16(1.0f + 0x1.8p-10f) == 0x3c02);
}

TEST(peak_finds_the_lowest_of_equals_and_every_value_that_is_not_finite) {
    for (const std::string& isa : available_isas())
        for (const uint32_t n : {1u, 15u, 16u, 77u, 4096u}) {
            const Kernels& kernels = kernels_for(isa);
            std::vector<float> x = normal(n, 1.0f, n);
            const auto most = static_cast<uint32_t>(std::max_element(x.begin(), x.end()) - x.begin());
            CHECK(kernels.peak(x.data(), n).id == most && kernels.peak(x.data(), n).finite);
            x[n - 1] = x[n / 2] = 9.0f;
            CHECK(kernels.peak(x.data(), n).id == n / 2);
            for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN()}) {
                x[n / 3] = odd;
                CHECK(!kernels.peak(x.data(), n).finite);
            }
        }
}

TEST(softmax_weights_equal_libm) {
    const std::vector<float> x = normal(1003, 40.0f, 9);
    const float most = *std::max_element(x.begin(), x.end());
    std::vector<double> first(x.size()), other(x.size());
    const double sum = kernels_for("portable").softmax_weights(x.data(), 1003, most, 0.7, first.data());
    double exact_sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
        const double exact = std::exp((double{x[i]} - most) / 0.7);
        CHECK(std::abs(first[i] - exact) <= 4e-16 * exact);
        exact_sum += exact;
    }
    CHECK(std::abs(sum - exact_sum) < 1e-14 * exact_sum);
    for (const std::string& isa : available_isas()) {
        CHECK(kernels_for(isa).softmax_weights(x.data(), 1003, most, 0.7, other.data()) == sum);
        CHECK(first == other);
    }
}

TEST(eight_bits_of_a_key_follow_the_rule_on_every_isa) {
    std::vector<float> x = normal(kKvGroup * 40, 3.0f, 9);
    x[3] = 40000.0f;                                   // alone in its group
    for (uint32_t i = 16; i < 32; ++i) x[i] = 0.0f;    // no scale
    for (uint32_t i = 32; i < 48; ++i) x[i] *= 1e-7f;  // a scale without all its bits
    x[48] = std::numeric_limits<float>::infinity();
    x[64] = std::numeric_limits<float>::quiet_NaN();
    for (const std::string& isa : available_isas())
        for (size_t at = 0; at < x.size(); at += kKvGroup) {
            int8_t levels[kKvGroup];
            uint16_t scale;
            kernels_for(isa).to_i8(x.data() + at, levels, &scale);
            const float step = f16_to_f32(scale);
            if (at == 48 || at == 64) {
                CHECK(std::isnan(step) && std::all_of(levels, levels + kKvGroup, [](int8_t q) { return q == 0; }));
                continue;
            }
            float most = 0.0f;
            for (uint32_t i = 0; i < kKvGroup; ++i) most = std::max(most, std::abs(x[at + i]));
            CHECK(scale == f32_to_f16(most / 127.0f));
            for (uint32_t i = 0; i < kKvGroup; ++i) {
                const float level = step > 0.0f ? std::nearbyint(x[at + i] / step) : 0.0f;
                CHECK(levels[i] == std::clamp(level, -127.0f, 127.0f));
            }
        }
}

// A pool of one KV head, and what of a key or value can be read out of it.
struct Pool {
    KvType type;
    uint32_t dim;
    size_t block;
    std::vector<uint8_t> bytes;

    Pool(KvType of, uint32_t head_dim, uint32_t blocks)
        : type(of), dim(head_dim), block(kv_head_bytes(of, head_dim)), bytes(block * blocks) {
        // f16: NaN wherever nothing is written. int8: levels whose scale is NaN.
        for (size_t i = 0; i < bytes.size(); i += 2) bytes[i] = 0x00, bytes[i + 1] = 0x7e;
    }

    double put(uint32_t at, uint32_t offset, uint32_t d, float value, bool values, float step) {
        const uint32_t size = kBlockTokens * dim;
        const uint32_t index = values ? offset * dim + d : d * kBlockTokens + offset;
        uint8_t* head = bytes.data() + at * block;
        if (type == KvType::f16) {
            const uint16_t half = f32_to_f16(value);
            std::memcpy(head + 2 * ((values ? size : 0) + index), &half, 2);
            return f16_to_f32(half);
        }
        const auto level = static_cast<int8_t>(std::nearbyint(value / step));
        const uint16_t scale = f32_to_f16(step);
        head[(values ? size : 0) + index] = static_cast<uint8_t>(level);
        std::memcpy(head + 2 * size + 2 * ((values ? dim : 0) + d / kKvGroup * kBlockTokens + offset), &scale, 2);
        return double{step} * level;
    }
};

void attention_equals_doubles(KvType type) {
    constexpr uint32_t dim = 32, group = kMaxGroup, positions = 600, blocks = 48;
    Pool pool(type, dim, blocks);
    std::vector<uint32_t> table(blocks);
    for (uint32_t i = 0; i < blocks; ++i) table[i] = i * 29 % blocks;
    const std::vector<float> k = normal(positions * dim, 1.0f, 1), v = normal(positions * dim, 1.0f, 2);
    std::vector<double> keys(positions * dim), values(positions * dim);
    for (uint32_t p = 0; p < positions; ++p)
        for (uint32_t d = 0; d < dim; ++d) {
            const uint32_t at = table[p / kBlockTokens], offset = p % kBlockTokens, i = p * dim + d;
            const float step = 0.03125f * static_cast<float>(1 + (p + d / kKvGroup) % 3);
            keys[i] = pool.put(at, offset, d, k[i], false, step);
            values[i] = pool.put(at, offset, d, v[i], true, step);
        }
    const std::vector<float> q = normal(kMaxQueries * group * dim, 1.0f, 3);
    for (const std::string& isa : available_isas())
        for (const uint32_t first : {0u, 50u, 63u, 240u, positions - kMaxQueries}) {
            const Kernels& kernels = kernels_for(isa);
            std::vector<float> out(q.size()), one(q.size()), joined(dim), scratch(attend_scratch(dim));
            const Attend all{.q = q.data(),
                             .q_stride = group * dim,
                             .queries = kMaxQueries,
                             .first = first,
                             .group = group,
                             .head_dim = dim,
                             .kv = pool.bytes.data(),
                             .block_stride = pool.block,
                             .type = type,
                             .blocks = table.data(),
                             .scratch = scratch.data()};
            kernels.attend(all, out.data(), group * dim);
            for (uint32_t i = 0; i < kMaxQueries; ++i)
                for (uint32_t g = 0; g < group; ++g) {
                    const float* query = q.data() + (i * group + g) * dim;
                    std::vector<double> mixed(dim);
                    double total = 0.0;
                    for (uint32_t p = 0; p <= first + i; ++p) {
                        double score = 0.0;
                        for (uint32_t d = 0; d < dim; ++d) score += query[d] * keys[p * dim + d];
                        const double weight = std::exp(score / std::sqrt(double{dim}));
                        total += weight;
                        for (uint32_t d = 0; d < dim; ++d) mixed[d] += weight * values[p * dim + d];
                    }
                    for (uint32_t d = 0; d < dim; ++d)
                        CHECK(std::abs(out[(i * group + g) * dim + d] - mixed[d] / total) < 3e-6);
                }
            // Any cut gives the same bits: some heads, some queries, parts by themselves.
            for (const uint32_t heads : {1u, 3u, group})
                for (const uint32_t queries : {1u, 2u, 7u}) {
                    for (uint32_t i = 0; i < kMaxQueries; i += queries) {
                        Attend some = all;
                        some.q += i * group * dim, some.first += i, some.group = heads;
                        some.queries = std::min(queries, kMaxQueries - i);
                        const uint32_t parts = (some.first + some.queries - 1) / kPartKeys + 1;
                        const size_t size = part_floats(dim);
                        std::vector<float> found(some.queries * heads * parts * size);
                        kernels.attend(some, one.data(), group * dim);
                        for (uint32_t part = 0; part < parts; ++part)
                            kernels.attend_part(some, part, found.data() + part * size, heads * parts * size,
                                                parts * size);
                        for (uint32_t j = 0; j < some.queries; ++j)
                            for (uint32_t g = 0; g < heads; ++g) {
                                const float* whole = out.data() + ((i + j) * group + g) * dim;
                                kernels.join_parts(found.data() + (j * heads + g) * parts * size,
                                                   (some.first + j) / kPartKeys + 1, dim, joined.data());
                                CHECK(std::equal(whole, whole + dim, one.data() + (j * group + g) * dim));
                                CHECK(std::equal(whole, whole + dim, joined.data()));
                            }
                    }
                }
        }
}

TEST(attention_equals_doubles_and_reads_no_key_past_the_query) { attention_equals_doubles(KvType::f16); }
TEST(attention_over_eight_bits_equals_doubles_and_reads_no_key_past_the_query) {
    attention_equals_doubles(KvType::int8);
}

struct Rows {
    Quantised q;
    std::vector<int8_t> levels, low;
    std::vector<float> scales, sums;
    std::vector<int32_t> biases;

    Rows(const Kernels& kernels, const std::vector<float>& x, uint32_t cols, bool wide)
        : levels(x.size()),
          low(wide ? x.size() : 0),
          scales(x.size() / 32),
          sums(scales.size()),
          biases(scales.size()) {
        q = {levels.data(), wide ? low.data() : nullptr, scales.data(), sums.data(), biases.data()};
        const auto tokens = static_cast<uint32_t>(x.size() / cols);
        for (uint32_t t = 0; t < tokens; ++t) {  // in two pieces, as the model does
            kernels.quantise(x.data() + t * cols, 0, 1, cols, t, tokens, q);
            kernels.quantise(x.data() + t * cols + 32, 1, cols / 32 - 1, cols, t, tokens, q);
        }
    }

    int32_t level(size_t i) const { return low.empty() ? levels[i] : 256 * levels[i] + low[i]; }
};

TEST(quantised_activations_follow_the_rule_on_every_isa) {
    for (const std::string& isa : available_isas())
        for (const bool wide : {false, true}) {
            const float top = wide ? 32639.0f : 127.0f;
            std::vector<float> x = normal(32 * 7, 2.0f, 4);
            std::fill_n(x.begin() + 32, 32, 0.0f);
            std::fill_n(x.begin() + 64, 32, 0x1p-101f);
            x[96] = std::numeric_limits<float>::infinity(), x[130] = std::numeric_limits<float>::quiet_NaN();
            std::fill_n(x.begin() + 160, 32, -0x1p-100f);
            x[192] = 2 * top, x[193] = 1.0f, x[194] = 3.0f, x[195] = -5.0f, x[196] = -2 * top;  // ties to even
            const Rows rows(kernels_for(isa), x, 32 * 7, wide);
            for (uint32_t b = 0; b < 7; ++b) {
                float most = 0.0f;
                int32_t sum = 0;
                for (uint32_t i = 0; i < 32; ++i) most = std::max(most, std::abs(x[32 * b + i]));
                if (b == 3 || b == 4) {
                    CHECK(std::isnan(rows.scales[b]) && std::isnan(rows.sums[b]) && rows.level(32 * b + 5) == 0);
                    continue;
                }
                const float inverse = most < 0x1p-100f ? 0.0f : top / most;
                for (uint32_t i = 0; i < 32; ++i) {
                    CHECK(rows.level(32 * b + i) == std::nearbyint(x[32 * b + i] * inverse));
                    sum += rows.level(32 * b + i);
                }
                CHECK(rows.scales[b] == (most < 0x1p-100f ? 0.0f : most / top));
                CHECK(rows.sums[b] == rows.scales[b] * static_cast<float>(sum) && rows.biases[b] == -128 * sum);
            }
            CHECK(rows.level(193) == 0 && rows.level(194) == 2 && rows.level(195) == -2);
            CHECK(rows.level(196) == -static_cast<int32_t>(top));
        }
}

TEST(packing_loses_nothing) {
    for (const DType type : {DType::q4_1, DType::q8_0})
        for (const uint32_t cols : {32u, 96u, 128u}) {
            constexpr uint32_t rows = 37;
            const std::vector<uint8_t> data = TinyModel::weights(type, rows * cols / 32, 6);
            std::vector<uint8_t> packed(matrix_bytes(packed_type(type), rows, cols)), block(block_bytes(type));
            pack({data.data(), type, rows, cols}, packed.data());
            for (uint32_t r = 0; r < rows; ++r)
                for (uint32_t b = 0; b < cols / 32; ++b) {
                    unpack_block({packed.data(), packed_type(type), rows, cols}, r, b, block.data());
                    CHECK(std::equal(block.begin(), block.end(), data.begin() + (r * cols / 32 + b) * block.size()));
                }
        }
}

TEST(packed_products_equal_doubles_and_depend_on_nothing_beside_them) {
    constexpr uint32_t rows = 39, most_tokens = 53;
    for (const auto& [type, wide] : {std::pair{DType::q4_1, false}, std::pair{DType::q4_1, true},
                                     std::pair{DType::q8_0, false}, std::pair{DType::q8_0, true}})
        for (const uint32_t cols : {64u, 96u, 576u}) {
            std::vector<uint8_t> data = TinyModel::weights(type, rows * cols / 32, 5);
            if (type == DType::q8_0) data[2] = 0x80, data[3] = 0x7f;  // -128 and 127
            std::vector<uint8_t> packed(matrix_bytes(packed_type(type), rows, cols));
            pack({data.data(), type, rows, cols}, packed.data());
            const Matrix matrix{packed.data(), packed_type(type), rows, cols};
            const std::vector<float> x = normal(most_tokens * cols, 1.0f, cols);
            for (const std::string& isa : available_isas()) {
                const Kernels& kernels = kernels_for(isa);
                const Rows all(kernels, x, cols, wide);
                std::vector<float> whole(most_tokens * rows), weights(cols);
                kernels.packed_matmul(matrix, 0, rows, all.q, most_tokens, {whole.data(), rows, nullptr, false},
                                      nullptr);
                for (uint32_t r = 0; r < rows; ++r) {
                    kernels.dequantise(matrix, r, weights.data());
                    for (uint32_t t = 0; t < most_tokens; ++t) {
                        const Rows one(kernels, {x.begin() + t * cols, x.begin() + (t + 1) * cols}, cols, wide);
                        double sum = 0.0, size = 0.0;
                        for (uint32_t k = 0; k < cols; ++k) {
                            const double term = double{weights[k]} * one.level(k) * one.scales[k / 32];
                            sum += term, size += std::abs(term);
                        }
                        CHECK(std::abs(sum - whole[t * rows + r]) <= 2e-6 * size);
                    }
                }
                for (const uint32_t tokens : {1u, 2u, 5u, 12u, 13u, 24u, 31u}) {
                    const Rows some(kernels, {x.end() - tokens * cols, x.end()}, cols, wide);
                    std::vector<float> y(tokens * rows, 1.0f), index_y(tokens * rows), halves(tokens * rows);
                    std::vector<uint32_t> index(tokens);
                    for (uint32_t t = 0; t < tokens; ++t) index[t] = tokens - 1 - t;
                    kernels.packed_matmul(matrix, 0, 16, some.q, tokens, {halves.data(), rows, nullptr, false},
                                          packed.data());
                    kernels.packed_matmul(matrix, 16, rows, some.q, tokens, {halves.data() + 16, rows, nullptr, false},
                                          nullptr);
                    kernels.packed_matmul(matrix, 0, rows, some.q, tokens, {index_y.data(), rows, index.data(), false},
                                          nullptr);
                    kernels.packed_matmul(matrix, 0, rows, some.q, tokens, {y.data(), rows, nullptr, true}, nullptr);
                    for (uint32_t t = 0; t < tokens; ++t)
                        for (uint32_t r = 0; r < rows; ++r) {
                            const float expected = whole[(most_tokens - tokens + t) * rows + r];
                            CHECK(halves[t * rows + r] == expected && y[t * rows + r] == 1.0f + expected);
                            CHECK(index_y[(tokens - 1 - t) * rows + r] == expected);
                        }
                }
            }
        }
}

}  // namespace
}  // namespace edge
