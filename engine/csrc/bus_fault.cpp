#include "bus_fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace edge {
namespace {

constexpr const char* kMessage =
    "the image was cut short, or its disk cannot be read any more, while it was in use: the process ends. Never change "
    "an image in place: write another file and rename it (engine pack does), look for disk errors in the kernel's log, "
    "and start again; a damaged image is found by engine inspect --verify";

// A handler may call next to nothing (signal-safety(7)), so its line is made beforehand.
struct Note {
    std::atomic<bool> taken{false};
    std::atomic<uintptr_t> begin{0}, end{0};  // none while both are 0
    size_t nbytes = 0;
    char line[4096 + 1024];
};

Note notes[BusFaultNote::kMost];
std::atomic<bool> told{false};
struct sigaction before;

// Letters, digits and what is harmless in a JSON string; anything else becomes '?'.
std::string harmless(const std::string& path) {
    std::string text = path.substr(0, 4096);
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == '"' || c == '\\' || c > 0x7e; }, '?');
    return text;
}

void tell(uintptr_t address) {
    for (const Note& note : notes) {
        if (address < note.begin.load() || address >= note.end.load()) continue;
        if (!told.exchange(true)) static_cast<void>(!::write(STDERR_FILENO, note.line, note.nbytes));
        return;
    }
}

// On return the instruction runs again and faults again, now under the action that was there before. A signal that
// somebody sent does not come again by itself.
void on_bus_error(int number, siginfo_t* info, void*) {
    const int kept = errno;
    const bool sent = info->si_code <= 0;
    if (!sent) tell(reinterpret_cast<uintptr_t>(info->si_addr));
    ::sigaction(number, &before, nullptr);
    if (sent) ::raise(number);
    errno = kept;
}

void install() {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

BusFaultNote::BusFaultNote(const std::string& path, const uint8_t* data, size_t nbytes) {
    static std::once_flag installed;
    std::call_once(installed, install);
    for (place_ = 0; place_ < kMost && notes[place_].taken.exchange(true);) ++place_;
    if (place_ == kMost) return;
    Note& note = notes[place_];
    const int length =
        std::snprintf(note.line, sizeof note.line,
                      "{\"level\":\"fatal\",\"event\":\"weights_lost\",\"image\":\"%s\",\"message\":\"%s\"}\n",
                      harmless(path).c_str(), kMessage);
    note.nbytes = std::min(static_cast<size_t>(std::max(length, 0)), sizeof note.line - 1);
    note.begin.store(reinterpret_cast<uintptr_t>(data));
    note.end.store(reinterpret_cast<uintptr_t>(data) + nbytes);
}

BusFaultNote::~BusFaultNote() {
    if (place_ == kMost) return;
    notes[place_].end.store(0);
    notes[place_].begin.store(0);
    notes[place_].taken.store(false);
}

}  // namespace edge
