#include "tests/processes/processes.h"

#include <sys/wait.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {

namespace fs = std::filesystem;
using nlohmann::json;

std::string BuiltProgram(const std::string& path) {
  const char* const root = std::getenv("TEST_SRCDIR");
  const char* const workspace = std::getenv("TEST_WORKSPACE");
  if (root != nullptr && workspace != nullptr) return absl::StrCat(root, "/", workspace, "/", path);
  return fs::exists(path) ? path : absl::StrCat("bazel-bin/", path);
}

std::string TestDevice() {
  const char* const device = std::getenv("NIBBLE_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}

void WriteCorpus(const fs::path& path, int documents) {
  std::ofstream out(path);
  const char* const words[] = {"the ", "cat ", "saw ", "a ", "dog ", "and ", "ran ", "home "};
  uint32_t state = 1;
  for (int document = 0; document < documents; ++document) {
    for (int i = 0; i < 300; ++i) {
      state = state * 1664525u + 1013904223u;
      out << words[state >> 29] << (i % 60 == 59 ? "\n" : "");
    }
    out << "\n\n";
  }
}

std::string TextOf(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<json> ReadEvents(const fs::path& path, BrokenLines broken) {
  std::ifstream in(path);
  std::vector<json> events;
  // The last line may be incomplete.
  for (std::string line; std::getline(in, line) && !in.eof();) {
    json event = json::parse(line, nullptr, broken == BrokenLines::kThrow);
    if (!event.is_discarded()) events.push_back(std::move(event));
  }
  return events;
}

std::vector<json> EventsOf(const std::vector<json>& events, const std::string& kind) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event.at("event") == kind) found.push_back(event);
  }
  return found;
}

std::map<int64_t, uint64_t> LossBits(const std::vector<json>& events) {
  std::map<int64_t, uint64_t> losses;
  for (const json& event : EventsOf(events, "step")) {
    losses[event.at("step")] = std::bit_cast<uint64_t>(event.at("loss").get<double>());
  }
  return losses;
}

std::string FirstDifference(const std::map<int64_t, uint64_t>& a,
                            const std::map<int64_t, uint64_t>& b) {
  for (auto at = a.begin(), other = b.begin(); at != a.end() || other != b.end(); ++at, ++other) {
    if (at == a.end() || other == b.end() || at->first != other->first) {
      return absl::StrCat(a.size(), " steps and ", b.size(), " steps, which differ");
    }
    if (at->second == other->second) continue;
    return absl::StrCat("step ", at->first, ": ", std::bit_cast<double>(at->second), " and ",
                        std::bit_cast<double>(other->second));
  }
  return "";
}

json ShellResult::json() const { return nlohmann::json::parse(text, nullptr, false); }

ShellResult Shell(const std::string& command) {
  ShellResult said;
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return said;
  char buffer[4096];
  for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    said.text.append(buffer, got);
  }
  const int status = pclose(pipe);
  said.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

}  // namespace nibble
