// Runs the cases whose name contains the first argument; without one, all.
#include <cstring>

#include "check.h"

int main(int count, char** arguments) {
    int ran = 0;
    for (const edge::test::Case& test : edge::test::cases()) {
        if (count > 1 && !std::strstr(test.name, arguments[1])) continue;
        std::printf("%s\n", test.name);
        std::fflush(stdout);
        test.run();
        ++ran;
    }
    std::printf("%d passed\n", ran);
    return ran > 0 ? 0 : 1;
}
