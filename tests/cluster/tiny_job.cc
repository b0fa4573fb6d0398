#include "tests/cluster/tiny_job.h"

#include <sys/wait.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::minutes kPatience(5);

}  // namespace

std::string TinyJob::Yaml(const std::string& corpus) const {
  return absl::StrCat(
      "name: ", name, "\nmodel: tiny-transformer\nrecipe: ", recipe, "\n", "data: {train: [",
      corpus, "], sequence: ", sequence, ", validation_fraction: 0.1}\n",
      "training: {steps: ", steps, ", batch: ", batch, ", seed: ", seed, ", validate_every: 0}\n",
      "optimizer: {lr: 0.002, warmup_steps: 2, decay_fraction: 0.3}\n",
      "metrics: {log_every: 1, precision_every: 0}\n", "checkpoints: {every: ", every,
      ", keep_last: ", keep_last, "}\n", "resources: {ranks: ", ranks,
      ", threads: 1, memory_mib: ", memory_mib, "}\n", more);
}

void WriteCorpus(const fs::path& path) {
  std::ofstream out(path);
  const char* const words[] = {"the ", "cat ", "saw ", "a ", "dog ", "and ", "ran ", "home "};
  uint32_t state = 1;
  for (int document = 0; document < 40; ++document) {
    for (int i = 0; i < 300; ++i) {
      state = state * 1664525u + 1013904223u;
      out << words[state >> 29] << (i % 60 == 59 ? "\n" : "");
    }
    out << "\n\n";
  }
}

std::vector<json> ReadEvents(const fs::path& path) {
  std::ifstream in(path);
  std::vector<json> events;
  // The last line may be incomplete.
  for (std::string line; std::getline(in, line) && !in.eof();) {
    json event = json::parse(line, nullptr, false);
    // If a writer was killed within a line, the next writer cuts that off.
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

std::vector<json> RunUndisturbed(const std::string& trainer, const std::string& spec_yaml,
                                 const fs::path& directory) {
  fs::create_directories(directory);
  const fs::path spec = directory / "spec.yaml";
  std::ofstream(spec) << spec_yaml << "output: {directory: " << (directory / "run").string()
                      << "}\n";
  const auto started =
      StartDetached({.arguments = {trainer, "--spec", spec.string(), "--fresh", "--quiet"},
                     .log_path = (directory / "log").string()});
  EXPECT_TRUE(started.ok()) << started.status();
  if (!started.ok()) return {};
  EXPECT_TRUE(AwaitAnyEnd({*started}, kPatience)) << directory;
  EXPECT_FALSE(IsAlive(*started));
  std::vector<json> events = ReadEvents(directory / "run" / "events.jsonl");
  const std::vector<json> finish = EventsOf(events, "finish");
  EXPECT_TRUE(finish.size() == 1 && finish[0].at("reason") == "completed")
      << std::ifstream(directory / "log").rdbuf();
  return events;
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
