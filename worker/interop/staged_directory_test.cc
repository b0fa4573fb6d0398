#include "worker/interop/staged_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "worker/interop/interop_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

TEST(StagedDirectory, AppearsWholeOnCommitAndNotBefore) {
  const ScratchDirectory scratch;
  auto staged = StagedDirectory::Create(scratch / "model", false);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_TRUE((*staged)->Write("a", "one").ok());
  EXPECT_FALSE(fs::exists(scratch / "model"));
  ASSERT_TRUE((*staged)->Commit().ok());
  EXPECT_EQ(ReadText(scratch / "model/a"), "one");
  staged->reset();
  EXPECT_EQ(NamesIn(scratch.path()), std::vector<std::string>{"model"});
}

TEST(StagedDirectory, LeavesNothingWithoutCommit) {
  const ScratchDirectory scratch;
  {
    auto staged = StagedDirectory::Create(scratch / "model", false);
    ASSERT_TRUE(staged.ok());
    ASSERT_TRUE((*staged)->Write("a", "one").ok());
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(StagedDirectory, WhatExistsIsRefused) {
  const ScratchDirectory scratch;
  fs::create_directory(scratch / "model");
  EXPECT_EQ(StagedDirectory::Create(scratch / "model/", false).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(StagedDirectory, AModelIsReplacedWhole) {
  const ScratchDirectory scratch;
  fs::create_directory(scratch / "model");
  WriteText(scratch / "model/config.json", "{}");
  WriteText(scratch / "model/old", "old");
  auto staged = StagedDirectory::Create(scratch / "model", true);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_TRUE((*staged)->Write("new", "new").ok());
  EXPECT_EQ(ReadText(scratch / "model/old"), "old");
  const absl::Status status = (*staged)->Commit();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(NamesIn(scratch / "model"), std::vector<std::string>{"new"});
  EXPECT_EQ(NamesIn(scratch.path()), std::vector<std::string>{"model"});
}

TEST(StagedDirectory, WhatIsNoModelIsNotReplaced) {
  const ScratchDirectory scratch;
  fs::create_directory(scratch / "home");
  WriteText(scratch / "home/letter", "dear");
  WriteText(scratch / "file", "text");
  fs::create_directory(scratch / "empty");
  fs::create_directory_symlink(scratch / "empty", scratch / "link");
  for (const char* name : {"home", "file", "link"}) {
    EXPECT_EQ(StagedDirectory::Create(scratch / name, true).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << name;
  }
  EXPECT_EQ(ReadText(scratch / "home/letter"), "dear");
  EXPECT_TRUE(StagedDirectory::Create(scratch / "empty", true).ok());
}

TEST(StagedDirectory, ANameTakenMeanwhileIsNotReplaced) {
  const ScratchDirectory scratch;
  auto staged = StagedDirectory::Create(scratch / "model", false);
  ASSERT_TRUE(staged.ok());
  fs::create_directory(scratch / "model");  // empty: a plain rename would replace it
  EXPECT_EQ((*staged)->Commit().code(), absl::StatusCode::kAlreadyExists);
  staged->reset();
  EXPECT_EQ(NamesIn(scratch.path()), std::vector<std::string>{"model"});
}

TEST(StagedDirectory, AMissingParentIsNotMade) {
  const ScratchDirectory scratch;
  EXPECT_EQ(StagedDirectory::Create(scratch / "no/model", false).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace nibble
