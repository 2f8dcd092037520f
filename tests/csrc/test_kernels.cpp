#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "check.h"
#include "f16.h"
#include "kernels.h"
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
                kernels.matmul(matrix, 7, rows, x.data(), cols, tokens, y.data(), rows, scratch.data());
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

TEST(attention_equals_doubles_and_reads_no_key_past_the_query) {
    constexpr uint32_t dim = 32, group = 5, positions = 150, blocks = 12;
    constexpr size_t block = size_t{2} * kBlockTokens * dim;
    std::vector<uint16_t> kv(block * blocks, 0x7e00);  // NaN wherever nothing is written
    std::vector<uint32_t> table = {7, 2, 11, 0, 5, 3, 1, 9, 4, 10};
    const std::vector<float> k = normal(positions * dim, 1.0f, 1), v = normal(positions * dim, 1.0f, 2);
    for (uint32_t p = 0; p < positions; ++p) {
        uint16_t* at = kv.data() + table[p / kBlockTokens] * block;
        for (uint32_t d = 0; d < dim; ++d) {
            at[d * kBlockTokens + p % kBlockTokens] = f32_to_f16(k[p * dim + d]);
            at[(kBlockTokens + p % kBlockTokens) * dim + d] = f32_to_f16(v[p * dim + d]);
        }
    }
    const auto rounded = [](float x) { return double{f16_to_f32(f32_to_f16(x))}; };
    const std::vector<float> q = normal(kMaxQueries * group * dim, 1.0f, 3);
    for (const std::string& isa : available_isas())
        for (const uint32_t first : {0u, 50u, 63u, 120u, positions - kMaxQueries}) {
            std::vector<float> out(q.size()), scratch(attend_scratch(dim));
            kernels_for(isa).attend({q.data(), group * dim, out.data(), group * dim, kMaxQueries, first, group, dim,
                                     kv.data(), block, table.data(), scratch.data()});
            for (uint32_t i = 0; i < kMaxQueries; ++i)
                for (uint32_t g = 0; g < group; ++g) {
                    const float* query = q.data() + (i * group + g) * dim;
                    std::vector<double> mixed(dim);
                    double total = 0.0;
                    for (uint32_t p = 0; p <= first + i; ++p) {
                        double score = 0.0;
                        for (uint32_t d = 0; d < dim; ++d) score += query[d] * rounded(k[p * dim + d]);
                        const double weight = std::exp(score / std::sqrt(double{dim}));
                        total += weight;
                        for (uint32_t d = 0; d < dim; ++d) mixed[d] += weight * rounded(v[p * dim + d]);
                    }
                    for (uint32_t d = 0; d < dim; ++d)
                        CHECK(std::abs(out[(i * group + g) * dim + d] - mixed[d] / total) < 3e-6);
                }
        }
}

}  // namespace
}  // namespace edge
