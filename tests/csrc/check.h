// The least that a test needs: named cases, and checks that say where they failed.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace edge::test {

struct Case {
    const char* name;
    void (*run)();
};

inline std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

struct Register {
    Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

inline void require(bool held, const char* what, const char* file, int line) {
    if (held) return;
    std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    std::exit(1);
}

// The message of the exception that `call` throws; empty if it throws none of that type.
template <class E, class F>
std::string refusal(F&& call) {
    try {
        call();
    } catch (const E& error) {
        return error.what();
    }
    return "";
}

}  // namespace edge::test

#define CHECK(condition) edge::test::require(condition, #condition, __FILE__, __LINE__)
#define TEST(name)                                                  \
    static void name();                                             \
    static const edge::test::Register register_##name(#name, name); \
    static void name()
