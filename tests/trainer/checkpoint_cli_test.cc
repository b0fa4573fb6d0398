// `nibble checkpoint …` on the checkpoints of a real run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/trainer/trainer_process_testing.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CheckpointCli : public TrainerProcess {
 protected:
  void SetUp() override {
    TrainerProcess::SetUp();
    // There is a checkpoint of the run's end; that of a step in between comes later if the disk is
    // slow.
    for (const int steps : {3, 6, 9}) {
      spec_ = WriteSpec("run", {.ranks = 2, .steps = steps, .more = kSpec});
      ASSERT_EQ(Wait(Start("run", spec_)), 0) << Chatter("run");
    }
    run_ = (root_ / "run").string();
  }
  static constexpr char kSpec[] = "checkpoints: {every: 3, keep_last: 3}\n";

  // The output includes standard error.
  static ShellResult Nibble(const std::string& arguments) {
    return Shell(BuiltProgram("client/nibble") + " " + arguments + " 2>&1");
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    const ShellResult said = Nibble("checkpoint list " + run_ + " -o json");
    EXPECT_EQ(said.code, 0) << said.text;
    const json listed = json::parse(said.text);
    for (const json& entry : listed.at("checkpoints")) {
      steps.push_back(entry.at("step"));
    }
    return steps;
  }

  fs::path spec_;
  std::string run_;
};

TEST_F(CheckpointCli, ListAndDescribeShowTheStoredCheckpoints) {
  EXPECT_THAT(Steps(), ElementsAre(3, 6, 9));
  const ShellResult table = Nibble("checkpoint list " + run_ + "/checkpoints");
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.text, HasSubstr("REVISION"));
  const ShellResult described = Nibble("checkpoint describe " + run_ + "@6 -o json");
  ASSERT_EQ(described.code, 0) << described.text;
  const json checkpoint = json::parse(described.text);
  EXPECT_EQ(checkpoint.at("step"), 6);
  EXPECT_EQ(checkpoint.at("ranks"), 2);
  EXPECT_EQ(checkpoint.at("data_position"), 24);
  EXPECT_EQ(checkpoint.at("recipe_timeline").at("revisions").size(), 1u);
  EXPECT_THAT(std::string(checkpoint.at("spec")), HasSubstr("tiny-hybrid"));
  EXPECT_THAT(Nibble("checkpoint describe " + run_).text, HasSubstr("step 9 of job run"));
  EXPECT_EQ(Nibble("checkpoint describe " + run_ + "@7").code, 102);
  EXPECT_EQ(Nibble("checkpoint list " + run_ + "/nothing").code, 102);
}

TEST_F(CheckpointCli, VerifyNamesTheDamagedCheckpointAndFails) {
  EXPECT_EQ(Nibble("checkpoint verify " + run_).code, 0);
  fs::path damaged;
  for (const auto& entry : fs::recursive_directory_iterator(run_ + "/checkpoints")) {
    if (entry.path().string().find("step-000000000006") != std::string::npos &&
        entry.path().extension() == ".sst") {
      damaged = entry.path();
    }
  }
  ASSERT_FALSE(damaged.empty());
  std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(damaged) / 3));
  file.put('\x55');
  file.put('\xaa');
  file.close();
  const ShellResult said = Nibble("checkpoint verify " + run_);
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.text, HasSubstr("step 3: good"));
  EXPECT_THAT(said.text, HasSubstr("step 6: damaged"));
  EXPECT_THAT(said.text, HasSubstr("step 9: good"));
  EXPECT_EQ(Nibble("checkpoint verify " + run_ + "@9").code, 0);
}

TEST_F(CheckpointCli, PinnedCheckpointsAreKeptAndDeletedOnesRemoved) {
  EXPECT_EQ(Nibble("checkpoint pin " + run_ + "@3").code, 0);
  EXPECT_EQ(Nibble("checkpoint delete " + run_ + "@3").code, 1);
  EXPECT_EQ(Nibble("checkpoint delete " + run_ + "@6").code, 0);
  EXPECT_THAT(Steps(), ElementsAre(3, 9));
  // The run continues with keep_last: 2, which does not remove the pinned one.
  Settings longer = {.ranks = 2, .steps = 18, .more = "checkpoints: {every: 3, keep_last: 2}\n"};
  ASSERT_EQ(Wait(Start("run", WriteSpec("run", longer))), 0) << Chatter("run");
  EXPECT_THAT(Steps(), ElementsAre(3, testing::AllOf(testing::Gt(9), testing::Lt(18)), 18));
  EXPECT_EQ(Nibble("checkpoint unpin " + run_ + "@3").code, 0);
  EXPECT_EQ(Nibble("checkpoint delete " + run_ + "@3").code, 0);
  EXPECT_THAT(Steps(), ElementsAre(testing::Ge(15), 18));
  EXPECT_EQ(Nibble("checkpoint delete " + run_).code, 1);
}

TEST_F(CheckpointCli, AnExportInitialisesAnotherRun) {
  const std::string out = (root_ / "exported").string();
  const ShellResult exported = Nibble("checkpoint export " + run_ + "@6 " + out + " --dtype fp32");
  ASSERT_EQ(exported.code, 0) << exported.text;
  EXPECT_TRUE(fs::exists(out + "/config.json"));
  EXPECT_TRUE(fs::exists(out + "/model.safetensors"));
  EXPECT_EQ(Nibble("checkpoint export " + run_ + "@6 " + out).code, 1);

  const fs::path spec = WriteSpec("next", {.steps = 3, .more = kSpec});
  const ShellResult imported = Nibble("checkpoint import " + out + " --spec " + spec.string());
  ASSERT_EQ(imported.code, 0) << imported.text;
  EXPECT_EQ(Nibble("checkpoint import " + out + " --spec " + spec.string()).code, 1);
  ASSERT_EQ(Wait(Start("next", spec)), 0) << Chatter("next");
  const std::vector<json> events = Events("next");
  EXPECT_EQ(EventsOf(events, "resume").at(0).at("step"), 0);
  // It begins at the loss of the trained weights, not of random ones.
  EXPECT_LT(LossByStep(events).at(0), LossByStep(Events("run")).at(2));
}

TEST_F(CheckpointCli, WeightsOfAnotherModelAreRefusedByTheDifferingField) {
  const std::string out = (root_ / "exported").string();
  ASSERT_EQ(Nibble("checkpoint export " + run_ + " " + out).code, 0);
  std::string text = TextOf(spec_);
  text.replace(text.find("model: tiny-hybrid"), 18, "model: tiny-transformer");
  text.replace(text.find("/run, tensorboard"), 4, "/other");
  const fs::path other = root_ / "other.yaml";
  std::ofstream(other) << text;
  const ShellResult refused = Nibble("checkpoint import " + out + " --spec " + other.string());
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text, HasSubstr("model.pattern"));
}

}  // namespace
}  // namespace nibble
