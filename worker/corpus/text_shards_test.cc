#include <sys/inotify.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/corpus/text_sample.h"
#include "worker/corpus/text_shards.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/shard.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string NameOf(int64_t document) { return absl::StrCat("document ", document); }

std::vector<std::string> RandomTexts(uint32_t seed, int count, size_t longest) {
  std::mt19937 random(seed);
  std::vector<std::string> texts(count);
  for (std::string& text : texts) {
    text.resize(random() % (longest + 1));
    for (char& c : text) c = random() % 40 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
  }
  return texts;
}

// The delivered tokens by document; Encode() checks that pieces arrive in order and without gaps.
struct Outcome {
  absl::Status status;
  std::vector<std::vector<int32_t>> documents;  // complete ones
  size_t pieces = 0;
};
Outcome Encode(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int threads,
               size_t round_bytes) {
  Outcome outcome;
  int64_t offset = 0;
  std::vector<int32_t> tokens;
  ParallelEncoder encoder(
      tokenizer, threads, NameOf,
      [&](const ParallelEncoder::Encoded& piece) {
        EXPECT_EQ(piece.document, static_cast<int64_t>(outcome.documents.size()));
        EXPECT_EQ(piece.offset, offset);
        ++outcome.pieces;
        offset += piece.bytes;
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
        if (piece.ends_document) {
          EXPECT_EQ(offset, static_cast<int64_t>(texts[piece.document].size()));
          outcome.documents.push_back(std::exchange(tokens, {}));
          offset = 0;
        }
        return absl::OkStatus();
      },
      round_bytes);
  for (const std::string& text : texts) {
    const std::string dies_early = text;
    outcome.status = encoder.Add(dies_early);
    if (!outcome.status.ok()) return outcome;
  }
  outcome.status = encoder.Finish();
  return outcome;
}

std::vector<std::vector<int32_t>> OneByOne(const Tokenizer& tokenizer,
                                           const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> documents;
  for (const std::string& text : texts) documents.push_back(Encoded(tokenizer, text));
  return documents;
}

TEST(ParallelEncoder, TokensAreTheSameForAnyNumberOfThreadsAndAnyRoundSize) {
  const std::vector<std::string> texts = RandomTexts(1, 60, 3000);
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  ASSERT_TRUE(model.ok());
  const ByteTokenizer bytes;
  for (const Tokenizer* tokenizer : std::initializer_list<const Tokenizer*>{model->get(), &bytes}) {
    const auto expected = OneByOne(*tokenizer, texts);
    for (const int threads : {1, 2, 3, 8}) {
      for (const size_t round : {1, 100, 2999, 20'000, 0}) {
        const Outcome outcome = Encode(*tokenizer, texts, threads, round);
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        ASSERT_EQ(outcome.documents, expected) << threads << " " << round;
      }
    }
  }
}

TEST(ParallelEncoder, ALongDocumentIsCutIntoPieces) {
  const std::vector<std::string> texts = {"short", RandomTexts(2, 1, 1)[0],
                                          std::string(1'000'000, 'x'), "after"};
  for (const int threads : {1, 3}) {
    for (const size_t round : {100'000, 5'000'000}) {
      const Outcome outcome = Encode(ByteTokenizer(), texts, threads, round);
      ASSERT_TRUE(outcome.status.ok());
      EXPECT_EQ(outcome.documents, OneByOne(ByteTokenizer(), texts));
      EXPECT_EQ(outcome.pieces, 3 + (1'000'000 + kEncodePieceBytes - 1) / kEncodePieceBytes);
    }
  }
}

TEST(ParallelEncoder, ManyTinyDocumentsAreDeliveredBeforeTheRoundIsFull) {
  const std::vector<std::string> texts(20'000, "a");
  for (const int threads : {1, 2}) {
    const Outcome outcome = Encode(ByteTokenizer(), texts, threads, 0);
    ASSERT_TRUE(outcome.status.ok());
    EXPECT_EQ(outcome.documents.size(), texts.size());
  }
}

TEST(ParallelEncoder, WithoutDocumentsNothingIsDelivered) {
  EXPECT_THAT(Encode(ByteTokenizer(), {}, 2, 0).documents, IsEmpty());
  EXPECT_THAT(Encode(ByteTokenizer(), {"", "a", ""}, 2, 0).documents,
              ElementsAre(IsEmpty(), ElementsAre('a'), IsEmpty()));
}

TEST(ParallelEncoder, TheErrorOfTheFirstFailingDocumentIsReturnedAfterAllEarlierOnesWereDelivered) {
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  std::vector<std::string> texts = RandomTexts(3, 100, 500);
  texts[41] += "\xff";
  texts[43] = "\xfe";
  texts[90] = "\xfd";
  for (const int threads : {1, 4}) {
    for (const size_t round : {1, 1000, 0}) {
      const Outcome outcome = Encode(**model, texts, threads, round);
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("document 41: byte "));
      EXPECT_EQ(outcome.documents.size(), 41u);
    }
  }
}

TEST(ParallelEncoder, AnErrorOfDeliverStopsTheEncoder) {
  int calls = 0;
  const ByteTokenizer bytes;
  ParallelEncoder encoder(bytes, 2, NameOf, [&](const ParallelEncoder::Encoded&) {
    return ++calls == 3 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  });
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(encoder.Add("text").ok());
  EXPECT_EQ(encoder.Finish(), absl::ResourceExhaustedError("full"));
  EXPECT_EQ(calls, 3);
}

using ::testing::AllOf;
using ::testing::UnorderedElementsAre;

class TextShardsTest : public testing::Test {
 protected:
  // 300 different documents, "%" between them, in three files.
  TextShardsTest() {
    for (int file = 0; file < 3; ++file) {
      std::string text;
      for (int i = 0; i < 100; ++i) {
        texts_.push_back(absl::StrCat("document ", texts_.size(), std::string(i, '.'), "\n"));
        absl::StrAppend(&text, texts_.back(), "%\n");
      }
      WriteFile(directory_.Path(absl::StrCat("in/", file, ".txt")), text);
    }
    options_.inputs = {directory_.Path("in")};
    options_.split = {.rule = SplitRule::kLine, .delimiter = "%"};
    options_.output_dir = directory_.Path("out");
    options_.validation_fraction = 0.1;
    options_.seed = 3;
  }

  // The documents of a shard as texts; each must end with its end of document.
  static std::vector<std::string> Texts(const std::string& path) {
    const auto shard = TokenShard::Open(path);
    EXPECT_TRUE(shard.ok()) << shard.status();
    EXPECT_TRUE((*shard)->Verify().ok());
    EXPECT_EQ((*shard)->tokenizer(), "bytes");
    EXPECT_EQ((*shard)->vocabulary(), 257);
    const std::vector<int32_t> tokens = ReadAll(**shard);
    std::vector<std::string> texts;
    for (int64_t d = 0; d < (*shard)->documents(); ++d) {
      const int64_t begin = (*shard)->DocumentBegin(d), end = (*shard)->DocumentBegin(d + 1);
      EXPECT_EQ(tokens[end - 1], 256);
      texts.push_back(
          *ByteTokenizer().Decode({tokens.data() + begin, static_cast<size_t>(end - begin - 1)}));
    }
    return texts;
  }

  std::string Out(const std::string& name) const { return directory_.Path("out/" + name); }

  std::vector<std::string> Outputs() const {
    std::vector<std::string> names;
    if (!std::filesystem::exists(options_.output_dir)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(options_.output_dir)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  TempDirectory directory_;
  std::vector<std::string> texts_;
  PrepareTextOptions options_;
};

TEST_F(TextShardsTest, EveryDocumentIsInExactlyOneShardInOrder) {
  for (const double fraction : {0.01, 0.1, 0.5, 0.9}) {
    options_.validation_fraction = fraction;
    options_.overwrite = true;
    const auto prepared = PrepareText(options_, ByteTokenizer());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    std::vector<std::string> train, validation;
    const auto hold_out = HoldOut::Create(options_.seed, fraction);
    for (size_t d = 0; d < texts_.size(); ++d) {
      (hold_out->Contains(static_cast<int64_t>(d)) ? validation : train).push_back(texts_[d]);
    }
    EXPECT_EQ(Texts(prepared->train.path), train);
    EXPECT_EQ(Texts(prepared->validation->path), validation);
  }
}

TEST_F(TextShardsTest, TheReportMatchesTheShards) {
  const auto prepared = PrepareText(options_, ByteTokenizer());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->files, 3);
  EXPECT_EQ(prepared->train.path, Out("train.tokens"));
  EXPECT_EQ(prepared->validation->path, Out("validation.tokens"));
  int64_t bytes = 0;
  for (const std::string& text : texts_) bytes += static_cast<int64_t>(text.size());
  EXPECT_EQ(prepared->train.bytes + prepared->validation->bytes, bytes);
  for (const TextShard& shard : {prepared->train, *prepared->validation}) {
    const auto open = TokenShard::Open(shard.path);
    EXPECT_EQ(shard.documents, (*open)->documents());
    EXPECT_EQ(shard.tokens, (*open)->tokens());
    EXPECT_EQ(shard.tokens, shard.bytes + shard.documents);
  }
  EXPECT_THAT(Outputs(), UnorderedElementsAre("train.tokens", "validation.tokens"));
}

TEST_F(TextShardsTest, EqualFilesAndOptionsGiveEqualBytesAndAnotherSeedDifferentOnes) {
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  const std::string train = Contents(Out("train.tokens"));
  options_.output_dir = directory_.Path("again");
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  EXPECT_EQ(Contents(directory_.Path("again/train.tokens")), train);
  options_.overwrite = true;
  options_.seed = 4;
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  EXPECT_NE(Contents(directory_.Path("again/train.tokens")), train);
}

TEST_F(TextShardsTest, TheNumberOfThreadsDoesNotChangeTheShards) {
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  const ByteTokenizer bytes;
  WriteFile(directory_.Path("in/long.txt"), TestText(5, 5000));  // several pieces
  for (const Tokenizer* tokenizer : std::initializer_list<const Tokenizer*>{model->get(), &bytes}) {
    options_.overwrite = true;
    std::string train, validation;
    for (const int threads : {1, 2, 3, 7, 0}) {
      options_.threads = threads;
      const auto prepared = PrepareText(options_, *tokenizer);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      if (threads == 1) {
        train = Contents(Out("train.tokens"));
        validation = Contents(Out("validation.tokens"));
      }
      EXPECT_EQ(Contents(Out("train.tokens")), train) << threads;
      EXPECT_EQ(Contents(Out("validation.tokens")), validation) << threads;
    }
  }
}

TEST_F(TextShardsTest, SentencePieceShardsHaveTheTokensOfEveryDocument) {
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  options_.validation_fraction = 0;
  options_.threads = 2;
  const auto prepared = PrepareText(options_, **model);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto shard = TokenShard::Open(prepared->train.path);
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ((*shard)->tokenizer(), (*model)->label());
  EXPECT_EQ((*shard)->vocabulary(), 400);
  EXPECT_EQ((*shard)->end_of_document(), 2);
  const std::vector<int32_t> tokens = ReadAll(**shard);
  ASSERT_EQ((*shard)->documents(), static_cast<int64_t>(texts_.size()));
  for (int64_t d = 0; d < (*shard)->documents(); ++d) {
    const int64_t begin = (*shard)->DocumentBegin(d), end = (*shard)->DocumentBegin(d + 1);
    EXPECT_EQ(tokens[end - 1], 2);
    EXPECT_EQ(*(*model)->Decode({tokens.data() + begin, static_cast<size_t>(end - begin)}),
              texts_[d]);
  }
}

TEST_F(TextShardsTest, ProgressGrowsToTheTotalAndMatchesTheShards) {
  WriteFile(directory_.Path("in/long.txt"), TestText(5, 5000));
  for (const int threads : {1, 3}) {
    options_.threads = threads;
    options_.overwrite = true;
    std::vector<TextProgress> seen;
    options_.progress = [&](const TextProgress& progress) { seen.push_back(progress); };
    const auto prepared = PrepareText(options_, ByteTokenizer());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    int64_t total = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.Path("in"))) {
      total += static_cast<int64_t>(entry.file_size());
    }
    ASSERT_GT(seen.size(), 302u);  // 301 documents, one of several pieces, and the end
    for (size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].total_bytes, total);
      if (i == 0) continue;
      EXPECT_GE(seen[i].bytes, seen[i - 1].bytes);
      EXPECT_GE(seen[i].tokens, seen[i - 1].tokens);
      EXPECT_GE(seen[i].documents, seen[i - 1].documents);
    }
    EXPECT_EQ(seen.back().bytes, total);
    EXPECT_EQ(seen.back().documents, 301);
    EXPECT_EQ(seen.back().tokens, prepared->train.tokens + prepared->validation->tokens);
  }
}

TEST_F(TextShardsTest, ATextThatTheTokenizerRejectsIsNamedByFileDocumentAndByte) {
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  WriteFile(directory_.Path("in/9.txt"),
            "good\n%\nb\xe4"
            "d\n");
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    const absl::Status status = PrepareText(options_, **model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(directory_.Path("in/9.txt")), HasSubstr("document 301"),
                      HasSubstr("from byte 7 of the file"), HasSubstr("byte 1 of the text")));
    EXPECT_THAT(Outputs(), IsEmpty());
  }
}

TEST_F(TextShardsTest, WithoutAFractionAllDocumentsAreForTraining) {
  options_.validation_fraction = 0;
  const auto prepared = PrepareText(options_, ByteTokenizer());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_FALSE(prepared->validation.has_value());
  EXPECT_EQ(Texts(prepared->train.path), texts_);
  EXPECT_THAT(Outputs(), UnorderedElementsAre("train.tokens"));
}

TEST_F(TextShardsTest, ShardsAreReplacedOnlyOnRequestAndThenTogether) {
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  const std::string before = Contents(Out("train.tokens"));
  options_.validation_fraction = 0;
  const absl::Status status = PrepareText(options_, ByteTokenizer()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Out("train.tokens")));
  EXPECT_EQ(Contents(Out("train.tokens")), before);
  options_.overwrite = true;
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  // The old validation shard would have documents of the new training shard.
  EXPECT_THAT(Outputs(), UnorderedElementsAre("train.tokens"));
}

// So that a crash between the two does not leave a training shard without its held-out documents.
TEST_F(TextShardsTest, TheTrainingShardIsPublishedLast) {
  std::filesystem::create_directory(options_.output_dir);
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  ASSERT_GE(watch, 0);
  const absl::Cleanup close_watch = [watch] { close(watch); };
  ASSERT_GE(inotify_add_watch(watch, options_.output_dir.c_str(), IN_MOVED_TO), 0);
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  alignas(inotify_event) char events[4096];
  const ssize_t bytes = read(watch, events, sizeof events);
  std::vector<std::string> published;
  for (ssize_t at = 0; at < bytes;) {
    const auto* const event = reinterpret_cast<const inotify_event*>(events + at);
    published.emplace_back(event->name);
    at += static_cast<ssize_t>(sizeof *event + event->len);
  }
  EXPECT_THAT(published, ElementsAre("validation.tokens", "train.tokens"));
}

TEST_F(TextShardsTest, AnErrorLeavesEarlierShardsAndNothingElse) {
  ASSERT_TRUE(PrepareText(options_, ByteTokenizer()).ok());
  const std::string train = Contents(Out("train.tokens"));
  options_.overwrite = true;
  options_.split.control = ControlRule::kRefuse;
  WriteFile(directory_.Path("in/9.txt"), std::string_view("a\0b", 3));
  EXPECT_EQ(PrepareText(options_, ByteTokenizer()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Outputs(), UnorderedElementsAre("train.tokens", "validation.tokens"));
  EXPECT_EQ(Contents(Out("train.tokens")), train);
}

TEST_F(TextShardsTest, AShardWithoutDocumentsIsAnErrorThatNamesIt) {
  options_.validation_fraction = 1e-9;
  absl::Status status = PrepareText(options_, ByteTokenizer()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("validation"), HasSubstr("300")));
  options_.validation_fraction = 1 - 1e-9;
  status = PrepareText(options_, ByteTokenizer()).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("train.tokens"), HasSubstr("change the fraction or the seed")));
  WriteFile(directory_.Path("empty.txt"), "");
  options_.inputs = {directory_.Path("empty.txt")};
  status = PrepareText(options_, ByteTokenizer()).status();
  EXPECT_EQ(std::string(status.message()), "inputs: none of the 1 files has text");
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(TextShardsTest, OptionsOutOfBoundsAreRefusedBeforeAnythingIsWritten) {
  const auto error = [&](auto change) {
    PrepareTextOptions options = options_;
    change(options);
    const absl::Status status = PrepareText(options, ByteTokenizer()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](auto& o) { o.validation_fraction = 1; }), HasSubstr("validation_fraction"));
  EXPECT_THAT(error([](auto& o) { o.split.delimiter = ""; }), HasSubstr("delimiter"));
  EXPECT_THAT(error([](auto& o) { o.inputs = {}; }), HasSubstr("inputs"));
  EXPECT_THAT(error([](auto& o) { o.output_dir = ""; }), HasSubstr("output_dir"));
  EXPECT_THAT(error([](auto& o) { o.threads = -1; }), HasSubstr("threads is -1"));
  EXPECT_THAT(error([](auto& o) { o.threads = 1025; }), HasSubstr("threads is 1025"));
  EXPECT_FALSE(std::filesystem::exists(options_.output_dir));
}

}  // namespace
}  // namespace nibble
