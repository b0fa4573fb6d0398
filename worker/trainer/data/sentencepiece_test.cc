// Tokenizers of SentencePiece models.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/sentencepiece_library.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Options = std::unordered_map<std::string, std::string>;

constexpr SentencePieceType kModelTypes[] = {SentencePieceType::kBpe, SentencePieceType::kUnigram};

std::unique_ptr<SentencePieceTokenizer> FromModel(const std::string& model) {
  auto tokenizer = SentencePieceTokenizer::FromModel("model", model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The library's own tokens of the whole text.
std::vector<int> LibraryTokens(const std::string& model, std::string_view text) {
  sentencepiece_internal::Model library;
  EXPECT_EQ(library.Load(model), "");
  std::vector<int> tokens;
  EXPECT_EQ(library.Encode(text, tokens), "");
  return tokens;
}

// A model with the library's default options, except for `changes`.
std::string OtherModel(Options changes) {
  Options options = {{"vocab_size", "400"},
                     {"model_type", "bpe"},
                     {"num_threads", "1"},
                     {"minloglevel", "2"},
                     {"hard_vocab_limit", "false"},
                     {"normalization_rule_name", "identity"},
                     {"remove_extra_whitespaces", "false"},
                     {"byte_fallback", "true"}};
  for (auto& [name, value] : changes) options[name] = value;
  const std::string text = TestText(1, 300);
  std::string_view rest = text;
  std::string model;
  EXPECT_EQ(sentencepiece_internal::Train(
                options,
                [&] {
                  while (!rest.empty() && rest.front() == '\n') rest.remove_prefix(1);
                  const std::string line(rest.substr(0, rest.find('\n')));
                  rest.remove_prefix(line.size());
                  return line;
                },
                model),
            "");
  return model;
}

TEST(SentencePieceTokenizer, AnyUtf8TextDecodesToItself) {
  for (const SentencePieceType type : kModelTypes) {
    const auto tokenizer = FromModel(TestModel(type));
    for (const std::string& text :
         {std::string(), std::string("a"), std::string("\n"), std::string("\n\n x\n"),
          std::string("  leading"), std::string("trailing  "), std::string("a\0b\0", 4),
          std::string("\u4e2d\u6587 \U0001f600\u2585 new letters"), TestText(2, 300)}) {
      const std::vector<int32_t> tokens = Encoded(*tokenizer, text);
      for (const int32_t token : tokens) {
        ASSERT_GE(token, 0);
        ASSERT_LT(token, tokenizer->vocabulary());
        ASSERT_NE(token, tokenizer->end_of_document());
      }
      EXPECT_EQ(*tokenizer->Decode(tokens), text);
    }
  }
}

TEST(SentencePieceTokenizer, TokensAreFewerThanBytes) {
  for (const SentencePieceType type : kModelTypes) {
    const std::string text = TestText(3, 200);
    EXPECT_LT(2 * Encoded(*FromModel(TestModel(type)), text).size(), text.size());
  }
}

TEST(SentencePieceTokenizer, CutsDoNotChangeTheTokens) {
  std::mt19937 random(4);
  for (const SentencePieceType type : kModelTypes) {
    const auto tokenizer = FromModel(TestModel(type));
    ASSERT_TRUE(tokenizer->lines_apart());
    const std::string text = TestText(5, 400);
    const std::vector<int32_t> whole = Encoded(*tokenizer, text);
    for (int i = 0; i < 100; ++i) {
      const size_t largest = size_t{1} << (i % 15);
      std::vector<int32_t> tokens;
      for (size_t begin = 0; begin < text.size();) {
        const size_t size =
            tokenizer->PieceEnd(std::string_view(text).substr(begin), 1 + random() % largest);
        ASSERT_GT(size, 0u);
        ASSERT_TRUE(tokenizer
                        ->EncodePiece(std::string_view(text).substr(begin, size),
                                      static_cast<int64_t>(begin), AppendTo(tokens))
                        .ok());
        begin += size;
      }
      ASSERT_EQ(tokens, whole) << i;
    }
  }
}

TEST(SentencePieceTokenizer, PiecesEndAfterTheFirstLineFeedAtOrAfterTheBound) {
  const auto tokenizer = FromModel(TestModel());
  EXPECT_EQ(tokenizer->PieceEnd("ab\ncd\nef", 1), 3u);
  EXPECT_EQ(tokenizer->PieceEnd("ab\ncd\nef", 3), 3u);
  EXPECT_EQ(tokenizer->PieceEnd("ab\ncd\nef", 4), 6u);
  EXPECT_EQ(tokenizer->PieceEnd("ab\ncd\nef", 7), 8u);
  EXPECT_EQ(tokenizer->PieceEnd("ab\ncd\nef", 100), 8u);
}

TEST(SentencePieceTokenizer, BpeTokensAreTheLibrarysForTheWholeText) {
  const auto tokenizer = FromModel(TestModel(SentencePieceType::kBpe));
  for (int lines = 0; lines < 40; ++lines) {
    const std::string text = TestText(100 + lines, lines);
    EXPECT_EQ(Encoded(*tokenizer, text), LibraryTokens(TestModel(), text)) << lines;
  }
  const std::string text = TestText(6, 2000);
  EXPECT_EQ(Encoded(*tokenizer, text), LibraryTokens(TestModel(), text));
}

TEST(SentencePieceTokenizer, UnigramTokensAreTheLibrarysForShortTexts) {
  const std::string& model = TestModel(SentencePieceType::kUnigram);
  const auto tokenizer = FromModel(model);
  for (int lines = 0; lines < 10; ++lines) {
    const std::string text = TestText(100 + lines, lines);
    EXPECT_EQ(Encoded(*tokenizer, text), LibraryTokens(model, text)) << lines;
  }
}

TEST(SentencePieceTokenizer, ModelsWhoseTokensMaySpanLinesEncodeTextsWhole) {
  const Options kModels[] = {
      {{"normalization_rule_name", "nmt_nfkc"}},
      {{"remove_extra_whitespaces", "true"}},
      {{"treat_whitespace_as_suffix", "true"}},
      {{"byte_fallback", "false"}},
      {{"user_defined_symbols", "\n\n"}},
      {{"user_defined_symbols", "\nta"}},
      {{"model_type", "word"}, {"byte_fallback", "false"}},
  };
  const std::string text = TestText(7, 60);
  for (const Options& changes : kModels) {
    const std::string model = OtherModel(changes);
    const auto tokenizer = FromModel(model);
    ASSERT_NE(tokenizer, nullptr);
    const std::string& name = changes.begin()->first;
    EXPECT_FALSE(tokenizer->lines_apart()) << name;
    EXPECT_EQ(tokenizer->PieceEnd(text, 1), text.size()) << name;
    EXPECT_EQ(Encoded(*tokenizer, text), LibraryTokens(model, text)) << name;
    const std::string long_text(SentencePieceTokenizer::kMaxUnitBytes + 1, '\n');
    const absl::Status status = tokenizer->Encode(long_text, [](auto) { return absl::OkStatus(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("text from byte 0"), HasSubstr("4194305"), HasSubstr("4194304")));
  }
}

TEST(SentencePieceTokenizer, OtherModelsWithIndependentLinesAlsoMatchTheLibrary) {
  const Options kModels[] = {
      {},
      {{"add_dummy_prefix", "false"}},
      {{"user_defined_symbols", "\n"}, {"byte_fallback", "false"}},
      {{"user_defined_symbols", "ta,ren\n,    "}},
      {{"self_test_sample_size", "10"}},
      {{"split_by_whitespace", "false"}},
      {{"eos_id", "0"}, {"unk_id", "3"}, {"bos_id", "1"}, {"pad_id", "2"}},
  };
  for (const Options& changes : kModels) {
    const std::string model = OtherModel(changes);
    const auto tokenizer = FromModel(model);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_TRUE(tokenizer->lines_apart());
    const std::string text = TestText(8, 200);
    EXPECT_EQ(Encoded(*tokenizer, text), LibraryTokens(model, text));
  }
}

TEST(SentencePieceTokenizer, ALineAboveTheBoundIsRefusedByItsPositionAndALongOneBelowItIsNot) {
  const auto tokenizer = FromModel(TestModel(SentencePieceType::kUnigram));
  const auto ignore = [](absl::Span<const int32_t>) { return absl::OkStatus(); };
  const std::string line(SentencePieceTokenizer::kMaxUnitBytes, 'x');
  const absl::Status status = tokenizer->Encode("short\n" + line + "\n", ignore);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("line from byte 6 on has 4194305 bytes"));
  EXPECT_TRUE(tokenizer->Encode("short\n" + std::string(100'000, 'x'), ignore).ok());
}

TEST(SentencePieceTokenizer, InvalidUtf8IsRefusedByItsByteInTheWholeText) {
  const auto tokenizer = FromModel(TestModel());
  std::string text = TestText(9, 4000);
  ASSERT_GT(text.size(), kEncodePieceBytes);
  const std::string at = std::to_string(text.size());
  text += "\xe9t\xe9";
  const absl::Status status = tokenizer->Encode(text, [](auto) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("byte " + at), HasSubstr("0xe9")));
}

TEST(SentencePieceTokenizer, EachDocumentIsDecodedSeparately) {
  for (const SentencePieceType type : kModelTypes) {
    const auto tokenizer = FromModel(TestModel(type));
    std::vector<int32_t> tokens;
    for (const char* text : {"the one\n", " indented", "", "last"}) {
      ASSERT_TRUE(tokenizer->Encode(text, AppendTo(tokens)).ok());
      tokens.push_back(tokenizer->end_of_document());
    }
    EXPECT_EQ(*tokenizer->Decode(tokens), "the one\n indentedlast");
    EXPECT_EQ(*tokenizer->Decode({}), "");
  }
}

TEST(SentencePieceTokenizer, TokensOutsideTheVocabularyAreRefusedByPosition) {
  const auto tokenizer = FromModel(TestModel());
  for (const int32_t token : {-1, 400, INT32_MAX, INT32_MIN}) {
    const auto text = tokenizer->Decode({5, token});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()),
                AllOf(HasSubstr(std::to_string(token)), HasSubstr("position 1"), HasSubstr("400")));
  }
}

TEST(SentencePieceTokenizer, TheSinksErrorStopsTheEncoding) {
  int calls = 0;
  const absl::Status status =
      FromModel(TestModel())->Encode(TestText(10, 500), [&](absl::Span<const int32_t>) {
        ++calls;
        return absl::ResourceExhaustedError("full");
      });
  EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(calls, 1);
}

TEST(SentencePieceTokenizer, ThreadsThatShareAModelGetTheSameTokens) {
  for (const SentencePieceType type : kModelTypes) {
    const auto tokenizer = FromModel(TestModel(type));
    const std::string text = TestText(11, 200);
    std::vector<std::vector<int32_t>> got(4);
    std::vector<std::thread> threads;
    for (auto& tokens : got) {
      threads.emplace_back([&] { tokens = Encoded(*tokenizer, text); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& tokens : got) EXPECT_EQ(tokens, got[0]);
  }
}

TEST(SentencePieceTokenizer, ALoadedFileGivesTheSameTokenizerAsItsBytes) {
  const TempDirectory directory;
  const std::string path = directory.Path("m.model");
  WriteFile(path, TestModel());
  const auto tokenizer = SentencePieceTokenizer::Load(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->label(), FromModel(TestModel())->label());
  EXPECT_NE((*tokenizer)->label(), FromModel(TestModel(SentencePieceType::kUnigram))->label());
  EXPECT_EQ((*tokenizer)->vocabulary(), 400);
  EXPECT_EQ((*tokenizer)->end_of_document(), 2);
  EXPECT_EQ(SentencePieceTokenizer::Load(directory.Path("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SentencePieceTokenizer, AModelWithoutAnEndOfSentenceIsRefused) {
  const absl::Status status =
      SentencePieceTokenizer::FromModel("some.model", OtherModel({{"eos_id", "-1"}})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("some.model"), HasSubstr("eos_id")));
}

TEST(SentencePieceTokenizer, AnIncompleteModelIsRefusedByName) {
  const std::string& model = TestModel();
  const auto refused = [](std::string_view bytes) {
    const auto tokenizer = SentencePieceTokenizer::FromModel("some.model", bytes);
    if (tokenizer.ok()) return false;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("some.model"));
    return true;
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("hello, world"));
  EXPECT_TRUE(refused(std::string(1000, '\xff')));
  EXPECT_TRUE(refused(std::string(1000, '\0')));
  for (size_t size = 0; size < model.size(); ++size) {
    ASSERT_TRUE(refused(std::string_view(model).substr(0, size))) << size;
  }
}

}  // namespace
}  // namespace nibble
