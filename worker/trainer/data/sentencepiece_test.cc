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

using ::testing::HasSubstr;

// A length-delimited field of a number below 16.
std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) +
         bytes;
}
std::string Number(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string Piece(const std::string& text, int type = 1) {
  return Field(1, Field(1, text) + Number(3, type));
}
const std::string kByteFallback = "\x98\x02\x01";  // field 35
const std::string kBpe = Number(3, 2);
const std::string kIdentity = Field(3, Number(4, 0));  // no removal of spaces

bool LinesApart(const std::string& model) {
  const auto facts = ReadSentencePieceModel(model);
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts->lines_apart;
}

TEST(SentencePieceModel, TheLabelIsTheHashOfTheBytes) {
  // The published test vectors of 64-bit FNV-1a.
  EXPECT_EQ(SentencePieceLabel(""), "sp:cbf29ce484222325");
  EXPECT_EQ(SentencePieceLabel("a"), "sp:af63dc4c8601ec8c");
  EXPECT_EQ(SentencePieceLabel("foobar"), "sp:85944171f73967e8");
}

TEST(SentencePieceModel, LinesAreApartExactlyIfNoTokenSpansALineFeed) {
  const std::string spec = Field(2, kByteFallback);
  EXPECT_TRUE(LinesApart(Piece("a") + spec + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("a") + Field(2, kBpe + kByteFallback) + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("a\n") + spec + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\n") + Field(2, "") + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\n", 4) + Field(2, "") + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\nb", 3) + spec + kIdentity));  // a control piece: never in a text

  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, "") + kIdentity));      // a line feed is unknown
  EXPECT_FALSE(LinesApart(Piece("\n", 5) + Field(2, "") + kIdentity));  // unused: also unknown
  EXPECT_FALSE(LinesApart(Piece("a\nb") + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("\n\n") + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("\nb", 4) + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("\nb", 5) + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + spec + Field(3, "")));  // removes spaces by default
  EXPECT_FALSE(LinesApart(Piece("a") + spec + Field(3, Number(4, 0) + Field(2, "map"))));
  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, kByteFallback + "\xc0\x01\x01") + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, Number(3, 3) + kByteFallback) + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, Number(3, 4) + kByteFallback) + kIdentity));
  EXPECT_FALSE(
      LinesApart(Piece("a") + Piece("ab", 5) + Field(2, kBpe + kByteFallback) + kIdentity));
}

TEST(SentencePieceModel, LaterFieldsOverrideEarlierOnesAsInProtobuf) {
  const std::string spec = Field(2, kByteFallback);
  EXPECT_TRUE(LinesApart(Piece("a") + spec + Field(3, "") + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + spec + kIdentity + Field(3, Number(4, 1))));
}

TEST(SentencePieceModel, ContinuedIsTheModelWithoutSelfTestAndDummyPrefix) {
  const std::string spec = Field(2, kByteFallback);
  const auto facts =
      ReadSentencePieceModel(Piece("a") + spec + Field(4, "test") + kIdentity + Field(4, "again"));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->continued, Piece("a") + spec + kIdentity + Field(3, Number(3, 0)));
  EXPECT_EQ(facts->model, PieceModel::kUnigram);
}

TEST(SentencePieceModel, MissingAndMalformedFieldsAreNamed) {
  const std::string spec = Field(2, kByteFallback);
  const struct {
    std::string model;
    const char* message;
  } kCases[] = {
      {"", "pieces is missing"},
      {spec + kIdentity, "pieces is missing"},
      {Piece("a") + kIdentity, "trainer_spec is missing"},
      {Piece("a") + spec, "normalizer_spec is missing"},
      {Piece("a") + "\x12", "model: no valid field at byte"},  // without a length
      {Piece("a") + "\x12\x05" + "ab",
       "model: no valid field at byte"},  // fewer bytes than its length
      {Piece("a") + "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "model: no valid field"},
      {std::string("\x02\x00", 2), "model: no valid field at byte 0"},  // number 0
      {"\x0b", "model: no valid field at byte 0"},                      // a group
      {Field(1, "\x0a"), "pieces: no valid field at byte 0"},
      {Piece("a") + Field(2, "\x98"), "trainer_spec: no valid field"},
      {Piece("a") + Field(3, "\x25"), "normalizer_spec: no valid field"},
      {Piece("a", 7), "pieces: type is 7, not in [1, 6]"},
      {Piece("a") + Field(1, Field(1, "b") + std::string("\x15\x00\x00\xc0\x7f", 5)),
       "pieces: the score of piece 1 is nan"},
      {Field(1, Field(1, "b") + std::string("\x15\x00\x00\x80\xff", 5)),
       "pieces: the score of piece 0 is -inf"},
      {Piece("a") + Field(2, Number(3, 5)), "trainer_spec: model_type is 5, not in [1, 4]"},
  };
  for (const auto& one : kCases) {
    const absl::Status status = ReadSentencePieceModel(one.model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
  }
}

TEST(SentencePieceModel, TrainedModelsAreRead) {
  const auto bpe = ReadSentencePieceModel(TestModel(SentencePieceType::kBpe));
  const auto unigram = ReadSentencePieceModel(TestModel(SentencePieceType::kUnigram));
  ASSERT_TRUE(bpe.ok() && unigram.ok());
  EXPECT_TRUE(bpe->lines_apart && unigram->lines_apart);
  EXPECT_EQ(bpe->model, PieceModel::kBpe);
  EXPECT_EQ(unigram->model, PieceModel::kUnigram);
}

TEST(SentencePieceModel, PiecesAreInTheOrderOfTheirTokens) {
  const auto facts = ReadSentencePieceModel(TestModel());
  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_EQ(facts->pieces.size(), 400u);
  EXPECT_EQ(facts->pieces[0].text, "<unk>");
  EXPECT_EQ(facts->pieces[0].type, PieceType::kUnknown);
  EXPECT_EQ(facts->pieces[2].text, "</s>");
  EXPECT_EQ(facts->pieces[2].type, PieceType::kControl);
  EXPECT_EQ(facts->pieces[3 + 0x41].text, "<0x41>");
  EXPECT_EQ(facts->pieces[3 + 0x41].type, PieceType::kByte);
  EXPECT_EQ(facts->pieces[399].type, PieceType::kNormal);
  EXPECT_LT(facts->pieces[399].score, facts->pieces[260].score);
  EXPECT_TRUE(facts->byte_fallback);
  EXPECT_TRUE(facts->space_before_text);
}

TEST(SentencePieceModel, ATruncatedModelIsRefused) {
  const std::string& model = TestModel();
  EXPECT_FALSE(ReadSentencePieceModel("").ok());
  EXPECT_FALSE(ReadSentencePieceModel(model.substr(0, 20)).ok());
  EXPECT_FALSE(ReadSentencePieceModel(model.substr(0, model.size() - 1)).ok());
}

TEST(SentencePieceModel, DamagedBytesAreReadOrRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string model = TestModel();
    for (int n = 0; n < 8; ++n) model[random() % model.size()] = static_cast<char>(random());
    const auto facts = ReadSentencePieceModel(model);
    if (facts.ok()) {
      EXPECT_LE(facts->pieces.size(), model.size());
    }
  }
}

using ::testing::AllOf;
using ::testing::ElementsAre;

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

TEST(SentencePieceTraining, EqualTextsGiveEqualModelsAndDifferentTextsDifferentOnes) {
  for (const SentencePieceType type : kModelTypes) {
    const SentencePieceTraining training{.vocabulary = 400, .type = type};
    EXPECT_EQ(*TrainSentencePiece(TestText(1, 800), training), TestModel(type));
    EXPECT_NE(*TrainSentencePiece(TestText(2, 800), training), TestModel(type));
  }
  EXPECT_NE(TestModel(SentencePieceType::kBpe), TestModel(SentencePieceType::kUnigram));
}

TEST(SentencePieceTraining, TheVocabularyIsTheRequestedOne) {
  for (const SentencePieceType type : kModelTypes) {
    for (const int64_t vocabulary : {320, 377, 450}) {
      const auto model = TrainSentencePiece(TestText(1, 800), {vocabulary, type});
      ASSERT_TRUE(model.ok()) << model.status();
      sentencepiece_internal::Model library;
      ASSERT_EQ(library.Load(*model), "");
      EXPECT_EQ(library.pieces(), vocabulary);
      EXPECT_EQ(library.end_of_sentence(), 2);
    }
  }
}

TEST(SentencePieceTraining, LinesThatTheLibraryWouldSkipAreTrainedOn) {
  // One line of 300,000 bytes with the character that the library reserves.
  std::string text;
  while (text.size() < 300'000) {
    text += "\u6f22\u5b57 tarenmolisku \u2585vel" + std::to_string(text.size()) + " ";
  }
  const auto model = TrainSentencePiece(text, {.vocabulary = 308});
  ASSERT_TRUE(model.ok()) << model.status();
  sentencepiece_internal::Model library;
  ASSERT_EQ(library.Load(*model), "");
  std::vector<int> tokens;
  ASSERT_EQ(library.Encode("tarenmolisku", tokens), "");
  EXPECT_EQ(tokens.size(), 1u);
}

TEST(SentencePieceTraining, VocabulariesOutOfBoundsAreRefused) {
  const std::string text = TestText(1, 800);
  const struct {
    int64_t vocabulary;
    const char* message;
  } kCases[] = {{0, "vocabulary is 0, not in [260, 1048576]"},
                {-1, "vocabulary is -1"},
                {259, "vocabulary is 259"},
                {1'048'577, "vocabulary is 1048577"},
                {INT64_MAX, "vocabulary is 9223372036854775807"},
                {262, "smaller than required_chars"},
                {100'000, "Please set it to a value <="}};
  for (const auto& one : kCases) {
    const absl::Status status = TrainSentencePiece(text, {.vocabulary = one.vocabulary}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::to_string(one.vocabulary)), HasSubstr(one.message)));
  }
}

TEST(SentencePieceTraining, EmptyAndInvalidTextsAreRefused) {
  for (const std::string_view text : {"", "\n\n\n",
                                      "a\xff"
                                      "b"}) {
    const absl::Status status = TrainSentencePiece(text, {.vocabulary = 300}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("text to train on"));
  }
}

TEST(SentencePieceTraining, TrainingPrintsNothingOnStderr) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(TrainSentencePiece(TestText(1, 300), {.vocabulary = 330}).ok());
  EXPECT_FALSE(TrainSentencePiece(TestText(1, 300), {.vocabulary = 262}).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace nibble
