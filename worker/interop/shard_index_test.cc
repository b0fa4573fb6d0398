#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/interop/shard_index.h"

namespace nibble {
namespace {

TEST(ShardIndex, AWrittenIndexIsReadUnchanged) {
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

TEST(ShardIndex, FilesHaveTheNamesThatTransformersGives) {
  EXPECT_EQ(ShardFileName(1, 1), "model.safetensors");
  EXPECT_EQ(ShardFileName(2, 13), "model-00002-of-00013.safetensors");
}

TEST(ShardIndex, ANameOutsideTheDirectoryIsRefused) {
  for (const char* name : {"../x.safetensors", "/x.safetensors", "a/b.safetensors", ".safetensors",
                           "..safetensors", "model.bin", ""}) {
    const std::string text = nlohmann::json({{"weight_map", {{"t", name}}}}).dump();
    const absl::Status status = ParseShardIndex(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("\"t\""), absl::string_view::npos) << status;
  }
}

TEST(ShardIndex, AnInvalidIndexIsRefused) {
  for (const char* text : {"{}", R"({"weight_map": {}})", R"({"weight_map": []})",
                           R"({"weight_map": {"t": 3}})", R"({"weight_map": {"t": null}})", "["}) {
    EXPECT_EQ(ParseShardIndex(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace nibble
