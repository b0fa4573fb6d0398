#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/interop/interop_testing.h"
#include "worker/interop/model_directory.h"

namespace nibble {
namespace {

TEST(ShardIndex, ReadsWhatItWrites) {
  ShardIndex index;
  index.file_of = {{"a", "model-00002-of-00002.safetensors"},
                   {"b", "model-00001-of-00002.safetensors"},
                   {"c", "model-00002-of-00002.safetensors"}};
  const std::string text = ShardIndexText(index, 123);
  EXPECT_EQ(nlohmann::json::parse(text)["metadata"]["total_size"], 123);
  const absl::StatusOr<ShardIndex> read = ParseShardIndex(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->file_of, index.file_of);
  EXPECT_EQ(read->Files(), (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                     "model-00002-of-00002.safetensors"}));
}

TEST(ShardIndex, NamesAreThoseThatTransformersGives) {
  EXPECT_EQ(ShardFileName(1, 1), "model.safetensors");
  EXPECT_EQ(ShardFileName(2, 13), "model-00002-of-00013.safetensors");
}

TEST(ShardIndex, NothingOutsideTheDirectoryCanBeNamed) {
  for (const char* name : {"../x.safetensors", "/x.safetensors", "a/b.safetensors", ".safetensors",
                           "..safetensors", "model.bin", ""}) {
    const std::string text = nlohmann::json({{"weight_map", {{"t", name}}}}).dump();
    const absl::Status status = ParseShardIndex(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("\"t\""), absl::string_view::npos) << status;
  }
}

TEST(ShardIndex, WhatIsNoIndexIsRefused) {
  for (const char* text : {"{}", R"({"weight_map": {}})", R"({"weight_map": []})",
                           R"({"weight_map": {"t": 3}})", R"({"weight_map": {"t": null}})", "["}) {
    EXPECT_EQ(ParseShardIndex(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

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
