#include "common/files/truncated_files.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

namespace nibble {
namespace {

struct Mapped {
  const char* begin;
  size_t size;
  std::string path;
};

// Read by the handler, so without a lock. A file that finds no place is not reported.
std::array<std::atomic<Mapped*>, 1024> mapped_files;
const char* report_prefix = "";
int report_exit_code = 1;

void Print(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

// Its frame may damage what lies below the stack pointer; the process does not continue.
void HandleBusError(int signal, siginfo_t* info, void*) {
  const auto* const at = static_cast<const char*>(info->si_addr);
  for (const std::atomic<Mapped*>& place : mapped_files) {
    const Mapped* const file = place.load(std::memory_order_acquire);
    if (file == nullptr || at < file->begin || at >= file->begin + file->size) continue;
    Print(report_prefix);
    Print(file->path.c_str());
    Print(
        ": truncated while it was read; replace a file that is in use by a rename instead of "
        "writing to it\n");
    _exit(report_exit_code);
  }
  (void)::signal(signal, SIG_DFL);  // the read is repeated and ends the process
}

}  // namespace

void ReportTruncatedFiles(const char* prefix, int exit_code) {
  report_prefix = prefix;
  report_exit_code = exit_code;
  struct sigaction action = {};
  action.sa_sigaction = HandleBusError;
  action.sa_flags = SA_SIGINFO;
  (void)sigaction(SIGBUS, &action, nullptr);
}

void NoteMapping(const void* begin, size_t size, const std::string& path) {
  auto file = std::make_unique<Mapped>(Mapped{static_cast<const char*>(begin), size, path});
  for (std::atomic<Mapped*>& place : mapped_files) {
    Mapped* none = nullptr;
    if (!place.compare_exchange_strong(none, file.get(), std::memory_order_acq_rel)) continue;
    (void)file.release();
    return;
  }
}

void ForgetMapping(const void* begin) {
  for (std::atomic<Mapped*>& place : mapped_files) {
    Mapped* file = place.load(std::memory_order_acquire);
    // No other thread removes it: the caller owns the mapping.
    if (file == nullptr || file->begin != begin) continue;
    place.store(nullptr, std::memory_order_release);
    delete file;
    return;
  }
}

}  // namespace nibble
