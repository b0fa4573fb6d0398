#include "worker/trainer/data/bpe_tokenizer.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/byte_pairs.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Made by tests/interop/make_tokenizers.py.
constexpr char kFixtures[] = "tests/interop/fixtures/tokenizers/";
constexpr const char* kKinds[] = {
    "gpt2", "llama3", "qwen2", "llama2", "metaspace-first", "metaspace-always", "metaspace-never"};

std::string FixtureText(const std::string& kind) {
  return Contents(kFixtures + kind + "/tokenizer.json");
}
std::unique_ptr<BpeTokenizer> Fixture(const std::string& kind) {
  auto loaded = BpeTokenizer::Load(kFixtures + kind + "/tokenizer.json");
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}
json Cases() { return json::parse(Contents(std::string(kFixtures) + "cases.json")); }

std::vector<int32_t> Tokens(const Tokenizer& tokenizer, std::string_view text, size_t piece_bytes) {
  std::vector<int32_t> tokens;
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = tokenizer.PieceEnd(text.substr(begin), piece_bytes);
    EXPECT_GT(size, 0u);
    const absl::Status status = tokenizer.EncodePiece(
        text.substr(begin, size), static_cast<int64_t>(begin), AppendTo(tokens));
    EXPECT_TRUE(status.ok()) << status;
    begin += size;
  }
  return tokens;
}

TEST(BpeTokenizer, TokensAreThoseOfHuggingFacesWhereverATextIsCut) {
  for (const char* kind : kKinds) {
    const auto tokenizer = Fixture(kind);
    for (const json& c : Cases()) {
      const std::string text = c["text"];
      const std::vector<int32_t> expected = c[kind];
      EXPECT_EQ(Tokens(*tokenizer, text, text.size() + 1), expected) << kind << ": " << text;
      EXPECT_EQ(Tokens(*tokenizer, text, 1), expected) << kind << ", cut: " << text;
    }
  }
}

TEST(BpeTokenizer, LongTextsAreCutIntoPieces) {
  for (const char* kind : kKinds) {
    const std::string text = Cases().back()["text"];
    EXPECT_LT(Fixture(kind)->PieceEnd(text, 40), 60u) << kind;
  }
}

TEST(BpeTokenizer, TokensDecodeToTheirText) {
  for (const char* kind : kKinds) {
    const auto tokenizer = Fixture(kind);
    for (const std::string text :
         {"", "x", "Stra\u00dfe \u6f22 \U0001f600\n\n  x  ", "it's 1729"}) {
      std::vector<int32_t> tokens = Tokens(*tokenizer, text, text.size() + 1);
      tokens.push_back(tokenizer->end_of_document());
      EXPECT_EQ(*tokenizer->Decode(tokens), text) << kind;
    }
    EXPECT_EQ(tokenizer->Decode({tokenizer->vocabulary()}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(BpeTokenizer, ItsFileReadsBackAsTheSameTokenizerWithoutOtherFiles) {
  const TempDirectory directory;
  const auto tokenizer = Fixture("llama3");
  WriteFile(directory.Path("t"), std::string(tokenizer->file()));
  const auto again = BpeTokenizer::Load(directory.Path("t"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->label(), tokenizer->label());
  EXPECT_EQ((*again)->end_of_document(), tokenizer->end_of_document());
  EXPECT_EQ((*again)->file(), tokenizer->file());
}

TEST(BpeTokenizer, TheLabelDependsExactlyOnWhatDeterminesTheTokens) {
  json changed = json::parse(FixtureText("gpt2"));
  const std::string label = Fixture("gpt2")->label();
  const auto label_of = [&](const char* end) {
    return BpeTokenizer(*ReadTokenizerJson("t", changed.dump(), end)).label();
  };
  changed["post_processor"] = {{"type", "TemplateProcessing"}};
  changed["padding"] = 1;
  EXPECT_EQ(label_of("<|end|>"), label);
  EXPECT_NE(label_of("nibble"), label);
  changed["model"]["merges"].erase(changed["model"]["merges"].size() - 1);
  EXPECT_NE(label_of("<|end|>"), label);
}

TEST(BpeTokenizer, AnEndOfDocumentTokenIsRequired) {
  const TempDirectory directory;
  WriteFile(directory.Path("tokenizer.json"), FixtureText("gpt2"));
  const auto load = [&] { return BpeTokenizer::Load(directory.Path("tokenizer.json")); };
  EXPECT_THAT(std::string(load().status().message()),
              AllOf(HasSubstr("no end-of-document token"), HasSubstr("\"eos_token\"")));
  WriteFile(directory.Path("tokenizer_config.json"), R"({"eos_token": {"content": "nibble"}})");
  ASSERT_TRUE(load().ok()) << load().status();
  EXPECT_EQ((*load())->end_of_document(), 400);
  WriteFile(directory.Path("tokenizer_config.json"), R"({"eos_token": "<end>"})");
  EXPECT_THAT(std::string(load().status().message()),
              HasSubstr("eos_token: \"<end>\" is not one of its tokens"));
}

TEST(BpeTokenizer, UnsupportedPartsAreNamed) {
  const json whole = json::parse(FixtureText("gpt2"));
  const auto refusal = [&](const char* pointer, const json& value) {
    json changed = whole;
    changed[json::json_pointer(pointer)] = value;
    const absl::Status status = ReadTokenizerJson("t.json", changed.dump(), "<|end|>").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pointer;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("/model/type", "WordPiece"), HasSubstr("t.json: model.type: 'WordPiece'"));
  EXPECT_THAT(refusal("/model", nullptr), HasSubstr("model: missing"));
  EXPECT_THAT(refusal("/model/dropout", 0.1), HasSubstr("model.dropout: 0.1"));
  EXPECT_THAT(refusal("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(refusal("/normalizer", {{"type", "NFC"}}),
              HasSubstr("normalizer: {\"type\":\"NFC\"}"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Whitespace"}}),
              HasSubstr("pre_tokenizer: Whitespace"));
  EXPECT_THAT(refusal("/pre_tokenizer/add_prefix_space", true), HasSubstr("add_prefix_space"));
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\w+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  EXPECT_THAT(refusal("/pre_tokenizer",
                      {{"type", "Sequence"}, {"pretokenizers", {split, whole["pre_tokenizer"]}}}),
              HasSubstr("pre_tokenizer.pattern: {\"Regex\":"));
  EXPECT_THAT(refusal("/added_tokens/0/lstrip", true), HasSubstr("added_tokens[0].lstrip"));
  EXPECT_THAT(refusal("/added_tokens/0/id", 5), HasSubstr("added_tokens[0]"));
  EXPECT_THAT(refusal("/model/merges/3", "a b c"),
              HasSubstr("model.merges[3]: \"a b c\" is not two"));
  EXPECT_THAT(refusal("/model/merges/3", {"a", "\n"}), HasSubstr("is not in model.vocab"));
  EXPECT_THAT(refusal("/model/vocab/a", -1), HasSubstr("the token of \"a\" is -1"));
  EXPECT_THAT(refusal("/model/vocab/a", 1 << 30), HasSubstr("not in [0, 2097152)"));
  EXPECT_THAT(refusal("/pre_tokenizer", nullptr), HasSubstr("model.byte_fallback: false"));
  json short_vocabulary = whole["model"]["vocab"];
  short_vocabulary.erase("!");
  EXPECT_THAT(refusal("/model/vocab", short_vocabulary), HasSubstr("byte 0x21"));
}

TEST(BpeTokenizer, DamagedFilesAreRefusedAndNeverCrash) {
  const std::string whole = FixtureText("llama2");
  uint32_t state = 1;
  const auto next = [&](size_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = whole.substr(0, i % 2 == 0 ? next(whole.size()) : whole.size());
    for (size_t change = 0; change < 3 && !text.empty(); ++change) {
      text[next(text.size())] = static_cast<char>(next(256));
    }
    const auto read = ReadTokenizerJson("t.json", text, "</s>");
    if (read.ok()) {
      Tokens(BpeTokenizer(*read), "the other x\n\n", 1);
      continue;
    }
    ++refused;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(read.status().message()), testing::StartsWith("t.json: "));
    EXPECT_EQ(read.status().message().find('\n'), absl::string_view::npos);
  }
  EXPECT_GT(refused, 200);
}

TEST(BpeTokenizer, InvalidUtf8IsRefusedByItsByte) {
  const absl::Status status = Fixture("gpt2")->EncodePiece(
      "ab\xff", 10, [](absl::Span<const int32_t>) { return absl::OkStatus(); });
  EXPECT_EQ(status.message(), "byte 12 of the text, 0xff, is not UTF-8");
}

TEST(BytePairs, TheLowestRankMergesFirstAndOfEqualRanksTheLeftmost) {
  // 1 2 -> 4, 2 1 -> 5, 4 4 -> 6.
  const BytePairs pairs({{1, 2, 4}, {2, 1, 5}, {4, 4, 6}});
  std::vector<int32_t> symbols = {1, 2, 1, 2, 1};
  pairs.Join(symbols);
  EXPECT_THAT(symbols, ElementsAre(6, 1));
  symbols = {2, 1, 1, 2};
  pairs.Join(symbols);
  EXPECT_THAT(symbols, ElementsAre(5, 4));
}

TEST(WordSplit, OnlySupportedExpressionsAreAccepted) {
  EXPECT_FALSE(WordSplitOf("\\s+").has_value());
  EXPECT_EQ(FirstWord({}, "a b"), 3u);
  EXPECT_EQ(FirstWord(kGpt2Split, "a b"), 1u);
}

TEST(UnicodeClass, EdgesOfTheTables) {
  EXPECT_EQ(ClassOf('a'), CharacterClass::kLetter);
  EXPECT_EQ(ClassOf('_'), CharacterClass::kOther);
  EXPECT_EQ(ClassOf('9'), CharacterClass::kNumber);
  EXPECT_EQ(ClassOf(0x85), CharacterClass::kSpace);
  EXPECT_EQ(ClassOf(0xaa), CharacterClass::kLetter);
  EXPECT_EQ(ClassOf(0x00), CharacterClass::kOther);
  EXPECT_EQ(ClassOf(0x10ffff), CharacterClass::kOther);
}

}  // namespace
}  // namespace nibble
