// What a run without a cluster leaves for people: TensorBoard's files, and a log to watch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/trainer/trainer_process_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunOutputs : public TrainerProcess {
 protected:
  // The sizes of the files in a directory of the run.
  std::vector<uintmax_t> SizesIn(const std::string& name, const std::string& directory) const {
    std::vector<uintmax_t> sizes;
    for (const auto& file : fs::directory_iterator(root_ / name / directory)) {
      EXPECT_THAT(file.path().filename().string(), HasSubstr("tfevents"));
      sizes.push_back(file.file_size());
    }
    return sizes;
  }
  ShellResult Watch(const std::string& name) const {
    return Shell(BuiltProgram("client/nibble") + " job watch " + (root_ / name).string() +
                 " 2>&1 </dev/null");
  }
};

TEST_F(RunOutputs, EachStartWritesATensorboardFileOfItsOwn) {
  const fs::path spec =
      WriteSpec("run", {.more = "checkpoints: {every: 4}\n", .tensorboard = "board"});
  ASSERT_EQ(Wait(Start("run", spec)), 0) << Chatter("run");
  ASSERT_EQ(SizesIn("run", "board").size(), 1u);
  // It has nothing to do; the first file stays as it is.
  ASSERT_EQ(Wait(Start("run", spec)), 0) << Chatter("run");
  const std::vector<uintmax_t> sizes = SizesIn("run", "board");
  ASSERT_EQ(sizes.size(), 2u);
  // The scalars of a step take more than a hundred bytes.
  EXPECT_GT(std::max(sizes[0], sizes[1]), 12u * 100);
}

TEST_F(RunOutputs, ADirectoryThatCannotBeMadeEndsTheRunWithTheFieldsName) {
  const Settings settings = {.tensorboard = "/proc/none"};
  EXPECT_NE(Wait(Start("run", WriteSpec("run", settings))), 0);
  EXPECT_THAT(Chatter("run"), HasSubstr("output.tensorboard: "));
}

TEST_F(RunOutputs, TheDirectoryOfARunIsWatchedToItsEnd) {
  ASSERT_FALSE(Run("run", {}).empty());
  const ShellResult watched = Watch("run");
  EXPECT_EQ(watched.code, 0) << watched.text;
  EXPECT_THAT(watched.text, HasSubstr("run has succeeded at 12/12 (100%)"));
  EXPECT_THAT(watched.text, HasSubstr("recipe r1"));
  // A directory without a log is an error that names it.
  const ShellResult none = Watch("none");
  EXPECT_NE(none.code, 0);
  EXPECT_THAT(none.text, HasSubstr("none/events.jsonl"));
}

}  // namespace
}  // namespace nibble
