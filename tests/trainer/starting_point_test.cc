// What a run starts from: the newest intact checkpoint, a chosen one, or the weights of another
// run; and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "job/job_spec.h"
#include "tests/trainer/stored_runs_testing.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class StartingPoint : public StoredRuns {
 protected:
  // Flips a bit in the middle of the largest file below a directory.
  static void Damage(const fs::path& directory) {
    fs::path largest;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file() &&
          (largest.empty() || entry.file_size() > fs::file_size(largest))) {
        largest = entry.path();
      }
    }
    std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(fs::file_size(largest) / 2);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
  }
  fs::path Newest(const std::string& name) const {
    fs::path newest;
    for (const auto& entry : fs::directory_iterator(root_ / name / "checkpoints")) {
      if (entry.path().filename().string().starts_with("step-")) {
        newest = std::max(newest, entry.path());
      }
    }
    return newest;
  }
};

// The reference is a run that resumes at step 0 from a checkpoint into which the same weights were
// written with moments of 0.
TEST_F(StartingPoint, ARunBeginsWithTheWeightsOfAnotherAndResumesFromItsOwn) {
  (void)Run("base", {.ranks = 1, .steps = 12, .more = kCheckpoints});
  // On a fast device, checkpoints in between are put off while an earlier one is being stored.
  const int64_t from = Stored("base").front();
  const Settings plain = {.ranks = 2, .steps = 30, .more = kCheckpoints};
  const fs::path reference = WriteSpec("reference", plain);
  {
    const absl::StatusOr<JobSpec> spec = ParseJobSpec(TextOf(reference));
    ASSERT_TRUE(spec.ok()) << spec.status();
    auto weights = CheckpointWeights::Open((root_ / "base").string(), from);
    ASSERT_TRUE(weights.ok()) << weights.status();
    fs::create_directories(root_ / "reference" / "checkpoints");
    auto store = CheckpointStore::Open((root_ / "reference" / "checkpoints").string(),
                                       {.identity = {.job = "run"}});
    ASSERT_TRUE(store.ok()) << store.status();
    const absl::Status written = WriteInitialCheckpoint(**store, *spec, **weights, 0);
    ASSERT_TRUE(written.ok()) << written;
  }
  ASSERT_EQ(Wait(Start("reference", reference)), 0) << Chatter("reference");
  const std::map<int64_t, double> losses = LossByStep(Events("reference"));
  ASSERT_EQ(losses.size(), 30u);

  Settings tuned = plain;
  tuned.more +=
      absl::StrCat("init_from: {path: ", (root_ / "base").string(), ", step: ", from, "}\n");
  const fs::path spec = WriteSpec("tuned", tuned);
  const pid_t child = Start("tuned", spec);
  while (LossByStep(Events("tuned")).size() < 13) PauseOfPoll();
  ASSERT_EQ(kill(child, SIGTERM), 0);
  ASSERT_EQ(Wait(child), 101) << Chatter("tuned");
  std::string notices;
  for (const json& notice : EventsOf(Events("tuned"), "notice")) notices += notice.at("text");
  EXPECT_THAT(notices,
              HasSubstr(absl::StrCat("begins with the weights of run, checkpoint of step ", from)));
  // It resumes without the other run's store.
  fs::rename(root_ / "base", root_ / "away");
  ASSERT_EQ(Wait(Start("tuned", spec)), 0) << Chatter("tuned");
  EXPECT_EQ(EventsOf(Events("tuned"), "resume").size(), 1u);
  EXPECT_EQ(LossByStep(Events("tuned")), losses);
  EXPECT_TRUE(SameTensors(Tensors("reference", 30), Tensors("tuned", 30)));
  // Starting afresh is impossible without it.
  EXPECT_EQ(Wait(Start("tuned", spec, {"--fresh"})), static_cast<int>(TrainerExit::kSpec));
  EXPECT_THAT(Chatter("tuned"), HasSubstr("init_from.path: there is no checkpoint store in " +
                                          (root_ / "base").string()));
}

TEST_F(StartingPoint, WeightsOfOtherShapesAreRefusedByTheFieldAndThoseOfAClustersJobByName) {
  (void)Run("base", {.steps = 3, .more = kCheckpoints});
  const std::string init = "init_from: {path: " + (root_ / "base").string() + "}\n";
  for (const int ranks : {1, 2}) {
    const fs::path spec = WriteSpec("wider", {.ranks = ranks, .more = init + kCheckpoints});
    std::string wider = TextOf(spec);
    wider.replace(wider.find("tiny-hybrid"), 11, "{preset: tiny-hybrid, d_ff: 256}");
    std::ofstream(spec) << wider;
    EXPECT_EQ(Wait(Start("wider", spec)), static_cast<int>(TrainerExit::kSpec));
    EXPECT_THAT(Chatter("wider"), HasSubstr("model.d_ff: 256, but 512 in the model of run"));
  }
  const fs::path spec = WriteSpec("job", {.more = "init_from: {job: base-1}\n"});
  EXPECT_EQ(Wait(Start("job", spec)), static_cast<int>(TrainerExit::kSpec));
  EXPECT_THAT(Chatter("job"), HasSubstr("init_from.job: 'base-1': "));
}

TEST_F(StartingPoint, ADamagedCheckpointIsNamedAndThePreviousOneIsUsed) {
  const Settings settings = {.steps = 12, .more = kCheckpoints};
  const std::vector<json> whole = Run("whole", settings);
  const std::vector<int64_t> stored = Stored("whole");  // the oldest first
  ASSERT_GE(stored.size(), 2u);
  fs::copy(root_ / "whole", root_ / "damaged", fs::copy_options::recursive);
  Damage(Newest("damaged"));
  const fs::path spec = WriteSpec("damaged", settings);
  ASSERT_EQ(Wait(Start("damaged", spec)), 0) << Chatter("damaged");
  const std::vector<json> events = Events("damaged");
  ASSERT_EQ(EventsOf(events, "resume").size(), 1u);
  EXPECT_EQ(EventsOf(events, "resume")[0].at("step"), stored[stored.size() - 2]);
  std::string notices;
  for (const json& notice : EventsOf(events, "notice")) notices += notice.at("text");
  EXPECT_THAT(notices, HasSubstr("step 12 is damaged"));
  EXPECT_EQ(LossByStep(events), LossByStep(whole));
  EXPECT_TRUE(SameTensors(Tensors("whole", 12), Tensors("damaged", 12)));
}

TEST_F(StartingPoint, IfAllCheckpointsAreDamagedTheRunIsRefusedExceptWithFresh) {
  const Settings settings = {.steps = 6, .more = kCheckpoints};
  (void)Run("damaged", settings);
  for (const auto& entry : fs::directory_iterator(root_ / "damaged" / "checkpoints")) {
    if (entry.is_directory()) Damage(entry.path());
  }
  const fs::path spec = WriteSpec("damaged", settings);
  EXPECT_EQ(Wait(Start("damaged", spec)), static_cast<int>(TrainerExit::kCheckpoint));
  EXPECT_THAT(Chatter("damaged"), HasSubstr("step 6"));
  EXPECT_THAT(Chatter("damaged"), HasSubstr("step 3"));
  EXPECT_EQ(Wait(Start("damaged", spec, {"--fresh"})), 0) << Chatter("damaged");
  EXPECT_EQ(EventsOf(Events("damaged"), "step").size(), 12u);
}

TEST_F(StartingPoint, ARunResumesFromTheChosenCheckpoint) {
  const Settings settings = {.steps = 9, .more = kCheckpoints};
  const std::vector<json> whole = Run("run", settings);
  const fs::path spec = WriteSpec("run", settings);
  EXPECT_EQ(Wait(Start("run", spec, {"--from-step", "1"})), 1);
  EXPECT_THAT(Chatter("run"), HasSubstr("step 1"));
  const int64_t from = Stored("run").front();
  ASSERT_EQ(Wait(Start("run", spec, {"--from-step", absl::StrCat(from)})), 0) << Chatter("run");
  EXPECT_EQ(EventsOf(Events("run"), "step").size(), static_cast<size_t>(9 + 9 - from));
  EXPECT_EQ(LossByStep(Events("run")), LossByStep(whole));
}

TEST_F(StartingPoint, AnotherRunOfTheSameNameIsRefusedByTheDifferingField) {
  (void)Run("run", {.steps = 3, .more = kCheckpoints});
  const fs::path spec =
      WriteSpec("run", {.steps = 6, .recipe = "bf16", .precision = "fp32", .more = kCheckpoints});
  EXPECT_EQ(Wait(Start("run", spec)), static_cast<int>(TrainerExit::kSpec));
  EXPECT_THAT(Chatter("run"), HasSubstr("training.precision"));
}

}  // namespace
}  // namespace nibble
