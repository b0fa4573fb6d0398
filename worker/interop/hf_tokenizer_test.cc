#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "worker/interop/hf_tokenizer.h"
#include "worker/interop/interop_testing.h"
#include "worker/trainer/data/bpe_tokenizer.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

void WriteAll(const std::map<std::string, std::string>& files, const std::string& directory) {
  for (const auto& [name, content] : files) WriteText(directory + "/" + name, content);
}

TEST(HfTokenizer, EveryByteHasAnEntryThatIsReadBack) {
  const ScratchDirectory scratch;
  const auto files = HfTokenizerFiles(ByteTokenizer());
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
  ASSERT_NE(read->tokenizer, nullptr);
  EXPECT_EQ(read->tokenizer->label(), "bytes");
}

TEST(HfTokenizer, ASentencePieceModelIsCopiedByteForByteAndReadBack) {
  const ScratchDirectory out;
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto files = HfTokenizerFiles(**tokenizer);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->at("tokenizer.model"), TestModel());
  WriteAll(*files, out.path());
  const auto read = ReadHfTokenizer(out.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tokenizer->label(), (*tokenizer)->label());
  // A tokenizer that was written and read can be written again.
  EXPECT_EQ(HfTokenizerFiles(*read->tokenizer)->at("tokenizer.model"), TestModel());
}

TEST(HfTokenizer, ABpeModelsTokenizerJsonGivesTheModelsTokens) {
  const ScratchDirectory out;
  const auto model = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(model.ok());
  auto files = *HfTokenizerFiles(**model);
  files.erase("tokenizer.model");
  WriteAll(files, out.path());
  const auto read = ReadHfTokenizer(out.path());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_NE(read->tokenizer, nullptr) << read->notice;
  EXPECT_EQ(read->tokenizer->end_of_document(), (*model)->end_of_document());
  const auto tokens = [](const Tokenizer& tokenizer, std::string_view text) {
    std::vector<int32_t> all;
    EXPECT_TRUE(tokenizer
                    .Encode(text,
                            [&](absl::Span<const int32_t> more) {
                              all.insert(all.end(), more.begin(), more.end());
                              return absl::OkStatus();
                            })
                    .ok());
    return all;
  };
  std::string random;
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    random += " \nabcdefghijklmnopqrstuvwxyz  12,."[(state >> 8) % 32];
  }
  for (const std::string& text :
       {TestText(0, 2000), std::string(" x"), std::string("  x"), std::string("x"),
        std::string("\n x\n"), std::string("\u2581x\u6f22"), random}) {
    EXPECT_EQ(tokens(*read->tokenizer, text), tokens(**model, text)) << text.substr(0, 40);
  }
}

TEST(HfTokenizer, AUnigramModelHasItsPiecesAndScoresInJson) {
  const std::string& model = TestModel(SentencePieceType::kUnigram);
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", model);
  ASSERT_TRUE(tokenizer.ok());
  const auto files = HfTokenizerFiles(**tokenizer);
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

TEST(HfTokenizer, AModelWithUnsupportedSettingsIsRefused) {
  // normalizer_spec { remove_extra_whitespaces: true }, merged into the existing one.
  const std::string model = TestModel() + "\x1a\x02\x20\x01";
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const absl::Status status = HfTokenizerFiles(**tokenizer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find((*tokenizer)->label()), absl::string_view::npos) << status;
}

TEST(HfTokenizer, ATokenizerJsonReadsBackWithTheLabelOfItsOriginal) {
  const ScratchDirectory out;
  const auto original =
      BpeTokenizer::Load("tests/interop/fixtures/tokenizers/llama3/tokenizer.json");
  ASSERT_TRUE(original.ok()) << original.status();
  WriteAll(*HfTokenizerFiles(**original), out.path());
  const auto read = ReadHfTokenizer(out.path());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_NE(read->tokenizer, nullptr) << read->notice;
  EXPECT_EQ(read->tokenizer->label(), (*original)->label());
}

TEST(HfTokenizer, AnUnreadableTokenizerJsonIsANotice) {
  const ScratchDirectory scratch;
  WriteText(scratch / "tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  const auto read = ReadHfTokenizer(scratch.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tokenizer, nullptr);
  EXPECT_NE(read->notice.find("model.type: 'WordPiece'"), std::string::npos) << read->notice;
}

TEST(HfTokenizer, ADirectoryWithoutASupportedTokenizerHasNone) {
  const ScratchDirectory scratch;
  EXPECT_EQ(ReadHfTokenizer(scratch.path())->tokenizer, nullptr);
  WriteText(scratch / "tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  EXPECT_EQ(ReadHfTokenizer(scratch.path())->tokenizer, nullptr);
}

TEST(HfTokenizer, DamagedFilesAreNamed) {
  const ScratchDirectory scratch;
  WriteText(scratch / "tokenizer_config.json", "{");
  EXPECT_NE(ReadHfTokenizer(scratch.path()).status().message().find("tokenizer_config.json"),
            absl::string_view::npos);
  const ScratchDirectory other;
  WriteText(other / "tokenizer.model", TestModel().substr(0, 1000));
  const absl::Status status = ReadHfTokenizer(other.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tokenizer.model"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace nibble
