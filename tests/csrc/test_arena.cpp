#include <stdexcept>

#include "arena.h"
#include "check.h"

namespace edge {
namespace {

using test::refusal;

std::vector<Placement> plan() {
    return {{.name = "a", .offset = 128, .nbytes = 40},
            {.name = "b", .offset = 0, .nbytes = 100, .copies = 3, .stride = 192}};
}

TEST(arena_gives_pieces_where_the_plan_has_them) {
    Arena arena(plan());
    CHECK(arena.size() == 2 * 192 + 100);
    auto* b = arena.take<uint8_t>("b", 100);
    CHECK(reinterpret_cast<uint8_t*>(arena.take<float>("a", 10)) == b + 128);
    CHECK(arena.take<uint8_t>("b", 100, 1) == b + 192 && arena.take<uint8_t>("b", 100, 2) == b + 384);
    for (uint32_t i = 0; i < arena.size(); ++i) CHECK(b[i] == 0);
    arena.expect_all_taken();
}

TEST(arena_refuses_what_the_plan_has_not) {
    const auto message = [](auto&& call) {
        Arena arena(plan());
        return refusal<std::invalid_argument>([&] { call(arena); });
    };
    CHECK(message([](Arena& of) { of.take<float>("c", 1); }) == "memory plan: 'c' is missing");
    CHECK(message([](Arena& of) { of.take<float>("a", 11); }) == "memory plan: 'a' has 40 bytes, the kernels need 44");
    CHECK(message([](Arena& of) { of.take<uint8_t>("b", 100, 3); }) == "memory plan: 'b' has no copy 3");
    CHECK(message([](Arena& of) { of.expect_all_taken(); }) == "memory plan: 'a' was taken 0 times, planned for 1");
}

TEST(arena_refuses_a_plan_that_cannot_be) {
    const auto message = [](Placement wrong) { return refusal<std::invalid_argument>([&] { Arena{{wrong}}; }); };
    CHECK(message({.name = "x", .offset = 8, .nbytes = 4}).find("multiple of 64") != std::string::npos);
    CHECK(message({.name = "x", .nbytes = 65, .copies = 2, .stride = 64}).find("overlap") != std::string::npos);
    CHECK(message({.name = "x", .nbytes = 1, .copies = 0}).find("overlap") != std::string::npos);
    CHECK(message({.name = "x", .offset = ~uint64_t{63}, .nbytes = 64}).find("beyond") != std::string::npos);
    CHECK(message({.name = "x", .nbytes = 64, .copies = 1u << 31, .stride = uint64_t{1} << 40}).find("beyond") !=
          std::string::npos);
}

TEST(arena_without_a_plan_gives_pieces_that_lie_apart) {
    Arena arena({});
    auto* one = arena.take<float>("a", 1000);
    auto* other = arena.take<float>("a", 1000, 1);
    one[999] = 1.0f;
    CHECK(other[0] == 0.0f && one != other);
    arena.expect_all_taken();
}

}  // namespace
}  // namespace edge
