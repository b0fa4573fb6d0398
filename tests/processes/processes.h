// For tests of whole programs: where the programs are, a corpus for them, what they wrote, waiting
// for them, and shell commands.
//
// Ownership: values. Thread-safety: the functions depend only on the disk.
#ifndef NIBBLE_TESTS_PROCESSES_PROCESSES_H_
#define NIBBLE_TESTS_PROCESSES_PROCESSES_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/process/process.h"

namespace nibble {

// The deadline of everything that must happen; far longer than needed.
inline constexpr std::chrono::seconds kPatience(300);

// Polls `condition`; false if it does not become true in kPatience.
template <class Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    (void)AwaitAnyEnd({}, std::chrono::milliseconds(20));
  }
  return true;
}

// The path of a built program ("server/nibble-coordinator"): among the test's files, or, outside of
// a test, in the directory that benchmarks run in.
std::string BuiltProgram(const std::string& path);

// resources.device of the jobs: NIBBLE_TEST_DEVICE, or cpu.
std::string TestDevice();

// Writes a text with learnable structure: sentences of few words.
void WriteCorpus(const std::filesystem::path& path, int documents);

// The whole file; empty if there is none.
std::string TextOf(const std::filesystem::path& path);

// If a writer was killed within a line, the next writer cuts that off; a reader at that moment may
// find a line that is not JSON.
enum class BrokenLines : uint8_t { kThrow, kSkip };
// The complete lines of an event log so far; empty if there is no file.
std::vector<nlohmann::json> ReadEvents(const std::filesystem::path& path,
                                       BrokenLines broken = BrokenLines::kThrow);
std::vector<nlohmann::json> EventsOf(const std::vector<nlohmann::json>& events,
                                     const std::string& kind);
// The last logged loss of each step, as bits, for exact comparison.
std::map<int64_t, uint64_t> LossBits(const std::vector<nlohmann::json>& events);
// Describes the first step at which they differ; empty if they are equal.
std::string FirstDifference(const std::map<int64_t, uint64_t>& a,
                            const std::map<int64_t, uint64_t>& b);

// The standard output of a shell command, and its exit code.
struct ShellResult {
  int code = -1;
  std::string text;

  nlohmann::json json() const;  // discarded if it is not JSON
};
ShellResult Shell(const std::string& command);

}  // namespace nibble

#endif  // NIBBLE_TESTS_PROCESSES_PROCESSES_H_
