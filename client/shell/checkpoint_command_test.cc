#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "client/shell/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Replies with the verb, the source and the name that it was asked for.
CheckpointSource FakeSource(const std::string& kind) {
  const auto reply_to = [kind](const char* verb, int exit_code = kExitDone) {
    return [kind, verb, exit_code](const CheckpointFlags& flags) {
      return Reply{.text = absl::StrCat(verb, " ", kind, " ", flags.name, "\n"),
                   .json = absl::StrCat("{\"verb\": \"", verb, "\"}\n"),
                   .notes = {"a note"},
                   .exit_code = exit_code};
    };
  };
  return {.list = reply_to("list"),
          .describe = reply_to("describe"),
          .verify = reply_to("verify", kExitError),
          .write = reply_to("export"),
          .pin = reply_to("pin"),
          .unpin = [](const CheckpointFlags& flags) { return StepMissing(flags.name); },
          .remove = reply_to("delete")};
}

Outcome Checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "checkpoint");
  return RunCommand(
      [](Command app, int& exit_code) {
        AddCheckpointCommand(app, exit_code, FakeSource("directory"), FakeSource("job"));
      },
      arguments);
}

TEST(CheckpointCommandTest, NamesWithASlashAndExistingDirectoriesAreDirectories) {
  EXPECT_EQ(Checkpoint({"list", "runs/a"}).out, "list directory runs/a\n");
  EXPECT_EQ(Checkpoint({"describe", "./a@7"}).out, "describe directory ./a@7\n");
  EXPECT_EQ(Checkpoint({"list", "train-1"}).out, "list job train-1\n");
  const std::string name = "checkpoint_command_test_run";
  std::filesystem::create_directory(name);
  EXPECT_EQ(Checkpoint({"list", name}).out, absl::StrCat("list directory ", name, "\n"));
  EXPECT_EQ(Checkpoint({"pin", name + "@7"}).out, absl::StrCat("pin directory ", name, "@7\n"));
  std::filesystem::remove(name);
}

TEST(CheckpointCommandTest, WithAServerEveryNameIsAJob) {
  EXPECT_EQ(Checkpoint({"list", "runs/a", "--server", "a:1"}).out, "list job runs/a\n");
}

TEST(CheckpointCommandTest, OptionsOfTheOtherSourceAreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"export", "train-1", "out", "--dtype", "fp32"},
                                             {"export", "train-1", "out", "--quantized"},
                                             {"export", "train-1", "out", "--recipe", "nvfp4"},
                                             {"export", "train-1", "out", "--overwrite"},
                                             {"describe", "./a", "--attempt", "2"},
                                             {"list", "./a", "--uncommitted"},
                                             {"verify", "./a", "--no-wait"},
                                             {"delete", "./a@1", "--reason", "old"}}) {
    const Outcome refused = Checkpoint(arguments);
    EXPECT_EQ(refused.exit_code, kExitUsage) << arguments[0];
    EXPECT_THAT(refused.out, IsEmpty());
    EXPECT_THAT(refused.err, HasSubstr("applies to"));
  }
  EXPECT_EQ(Checkpoint({"export", "./a", "out", "--dtype", "fp32"}).exit_code, kExitDone);
  EXPECT_EQ(Checkpoint({"delete", "train-1@1", "--reason", "old"}).exit_code, kExitDone);
}

TEST(CheckpointCommandTest, RepliesArePrintedInTheRequestedFormatWithTheirExitCode) {
  EXPECT_EQ(Checkpoint({"describe", "train-1", "-o", "json"}).out, "{\"verb\": \"describe\"}\n");
  EXPECT_EQ(Checkpoint({"describe", "train-1", "-o", "yaml"}).out, "verb: describe\n");
  EXPECT_EQ(Checkpoint({"describe", "train-1"}).err, "nibble checkpoint describe: a note\n");
  EXPECT_EQ(Checkpoint({"verify", "train-1"}).exit_code, kExitError);
}

TEST(CheckpointCommandTest, ANameWithoutItsStepIsAnErrorThatNamesTheRemedy) {
  const Outcome outcome = Checkpoint({"unpin", "train-1"});
  EXPECT_EQ(outcome.exit_code, kExitError);
  EXPECT_EQ(outcome.err,
            "nibble checkpoint unpin: checkpoint: 'train-1' has no step; name it train-1@STEP, and "
            "run 'nibble checkpoint list train-1' to see the steps\n");
}

}  // namespace
}  // namespace nibble
