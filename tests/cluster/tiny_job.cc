#include "tests/cluster/tiny_job.h"

#include <chrono>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::minutes kRunPatience(5);

}  // namespace

std::string TinyJob::Yaml(const std::string& corpus) const {
  return absl::StrCat(
      "name: ", name, "\nmodel: ", model, "\nrecipe: ", recipe, "\n", "data: {train: [", corpus,
      "], sequence: ", sequence, ", validation_fraction: 0.1}\n", "training: {steps: ", steps,
      ", batch: ", batch, ", seed: ", seed, ", validate_every: ", validate_every, "}\n",
      "optimizer: {lr: 0.002, warmup_steps: 2, decay_fraction: ", decay_fraction, "}\n",
      "metrics: {log_every: 1, precision_every: ", precision_every, "}\n",
      "checkpoints: {every: ", every, ", keep_last: ", keep_last, "}\n",
      "resources: {ranks: ", ranks, ", threads: 1, memory_mib: ", memory_mib,
      ", device: ", TestDevice(), "}\n", more);
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
  EXPECT_TRUE(AwaitAnyEnd({*started}, kRunPatience)) << directory;
  EXPECT_FALSE(IsAlive(*started));
  std::vector<json> events = ReadEvents(directory / "run" / "events.jsonl");
  const std::vector<json> finish = EventsOf(events, "finish");
  EXPECT_TRUE(finish.size() == 1 && finish[0].at("reason") == "completed")
      << std::ifstream(directory / "log").rdbuf();
  return events;
}

}  // namespace nibble
