#include "worker/interop/hf_tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/interop/interop_testing.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/sentencepiece_testing.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

void WriteAll(const std::map<std::string, std::string>& files, const std::string& directory) {
  for (const auto& [name, content] : files) WriteText(directory + "/" + name, content);
}

TEST(HfTokenizer, BytesHaveAnEntryEachAndReadBack) {
  const ScratchDirectory scratch;
  const auto files = HfTokenizerFiles(ByteTokenizer(), "");
  ASSERT_TRUE(files.ok()) << files.status();
  const Json tokenizer = Json::parse(files->at("tokenizer.json"));
  std::set<int> tokens;
  for (const auto& [piece, token] : tokenizer["model"]["vocab"].items()) {
    tokens.insert(token.get<int>());
  }
  EXPECT_EQ(tokens.size(), 256u);
  EXPECT_EQ(*tokens.rbegin(), 255);
  EXPECT_EQ(tokenizer["model"]["vocab"]["A"], 'A');
  EXPECT_EQ(tokenizer["model"]["vocab"]["\u0120"], ' ');  // as byte-level vocabularies spell it
  EXPECT_EQ(tokenizer["added_tokens"][0]["id"], 256);
  WriteAll(*files, scratch.path());
  const auto read = ReadHfTokenizer(scratch.path());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_NE(*read, nullptr);
  EXPECT_EQ((*read)->label(), "bytes");
}

TEST(HfTokenizer, ASentencePieceModelIsCopiedByteForByte) {
  const ScratchDirectory shards;
  const ScratchDirectory out;
  const std::string& model = TestModel();
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string label = (*tokenizer)->label();
  WriteText(shards / SentencePieceFileName(label), model);
  const auto files = HfTokenizerFiles(**tokenizer, shards.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->at("tokenizer.model"), model);
  EXPECT_EQ(Json::parse(files->at("tokenizer_config.json"))["add_bos_token"], false);
  WriteAll(*files, out.path());
  const auto read = ReadHfTokenizer(out.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->label(), label);
  // What was written can be written again.
  EXPECT_EQ(HfTokenizerFiles(**read, out.path())->at("tokenizer.model"), model);
}

TEST(HfTokenizer, AUnigramModelHasItsPiecesAndScoresInJsonToo) {
  const ScratchDirectory shards;
  const std::string& model = TestModel(SentencePieceType::kUnigram);
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", model);
  ASSERT_TRUE(tokenizer.ok());
  WriteText(shards / "tokenizer.model", model);
  const auto files = HfTokenizerFiles(**tokenizer, shards.path());
  ASSERT_TRUE(files.ok()) << files.status();
  const Json json = Json::parse(files->at("tokenizer.json"));
  EXPECT_EQ(json["model"]["type"], "Unigram");
  EXPECT_EQ(json["model"]["vocab"].size(), 400u);
  EXPECT_EQ(json["model"]["vocab"][3 + 'A'][0], "<0x41>");
  EXPECT_EQ(json["added_tokens"].size(), 3u);
  const Json config = Json::parse(files->at("tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(files->at("tokenizer.model"), model);
}

TEST(HfTokenizer, AModelThatIsUsedInAnotherWayIsRefused) {
  const ScratchDirectory shards;
  // normalizer_spec { add_dummy_prefix: false }, merged into the one that is there.
  const std::string model = TestModel() + std::string("\x1a\x02\x18\x00", 4);
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  WriteText(shards / "tokenizer.model", model);
  const absl::Status status = HfTokenizerFiles(**tokenizer, shards.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("no space before a text"), absl::string_view::npos) << status;
}

TEST(HfTokenizer, AModelThatIsNotTheTokenizersIsNotTaken) {
  const ScratchDirectory shards;
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok());
  WriteText(shards / "tokenizer.model", TestModel(SentencePieceType::kUnigram));
  const absl::Status status = HfTokenizerFiles(**tokenizer, shards.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find((*tokenizer)->label()), absl::string_view::npos) << status;
}

TEST(HfTokenizer, ADirectoryWithoutOneOrWithAnotherKindHasNone) {
  const ScratchDirectory scratch;
  EXPECT_EQ(*ReadHfTokenizer(scratch.path()), nullptr);
  WriteText(scratch / "tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(*ReadHfTokenizer(scratch.path()), nullptr);
}

TEST(HfTokenizer, DamagedFilesAreNamed) {
  const ScratchDirectory scratch;
  WriteText(scratch / "tokenizer_config.json", "{");
  EXPECT_NE(ReadHfTokenizer(scratch.path()).status().message().find("tokenizer_config.json"),
            absl::string_view::npos);
  WriteText(scratch / "tokenizer.model", TestModel().substr(0, 1000));
  const absl::Status status = ReadHfTokenizer(scratch.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tokenizer.model"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace nibble
