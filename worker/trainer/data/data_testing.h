// For tests of this and other rooms: files, small shards, texts and tokenizers.
//
// Ownership: values. Thread-safety: none, except that TestModel() may be called from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_DATA_TESTING_H_
#define NIBBLE_WORKER_TRAINER_DATA_DATA_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/shard.h"
#include "worker/trainer/data/shard_writer.h"
#include "worker/trainer/data/token_source.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

using file_testing::TempDirectory;

inline void WriteFile(const std::string& path, std::string_view text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  ASSERT_TRUE(out.flush()) << path;
}

inline std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

using Documents = std::vector<std::vector<int32_t>>;

// Documents of lengths in [1, longest] of tokens below `vocabulary`.
inline Documents RandomDocuments(uint32_t seed, int count, int longest, int32_t vocabulary) {
  std::mt19937 random(seed);
  Documents documents(count);
  for (auto& document : documents) {
    document.resize(1 + random() % longest);
    for (int32_t& token : document) token = static_cast<int32_t>(random() % vocabulary);
  }
  return documents;
}

inline std::vector<int32_t> Concatenated(const Documents& documents) {
  std::vector<int32_t> tokens;
  for (const auto& document : documents) {
    tokens.insert(tokens.end(), document.begin(), document.end());
  }
  return tokens;
}

// Small chunks, so that small shards have several; no end-of-document token, so that the shard has
// exactly the given tokens.
inline ShardOptions TestOptions(int64_t vocabulary = 1000) {
  return {.tokenizer = "test", .vocabulary = vocabulary, .chunk_bytes = 64};
}

inline void WriteShard(const std::string& path, const Documents& documents,
                       const ShardOptions& options = TestOptions()) {
  auto writer = TokenShardWriter::Create(path, options);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& document : documents) {
    ASSERT_TRUE((*writer)->Append(document).ok());
    ASSERT_TRUE((*writer)->EndDocument().ok());
  }
  const absl::Status status = (*writer)->Commit();
  ASSERT_TRUE(status.ok()) << status;
}

// Writes a shard and opens it. The file is removed: the mapping keeps its content.
inline std::shared_ptr<TokenShard> MakeShard(const Documents& documents,
                                             const ShardOptions& options = TestOptions()) {
  const TempDirectory directory;
  WriteShard(directory.Path("shard"), documents, options);
  auto shard = TokenShard::Open(directory.Path("shard"));
  EXPECT_TRUE(shard.ok()) << shard.status();
  return shard.ok() ? std::shared_ptr<TokenShard>(*std::move(shard)) : nullptr;
}

inline std::vector<int32_t> ReadAll(const TokenSource& source) {
  std::vector<int32_t> tokens(source.tokens());
  const absl::Status status = source.Read(0, source.tokens(), tokens.data());
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

// Overwrites bytes of a file's content.
template <class T>
void PutAt(std::string& file, size_t at, T value) {
  std::memcpy(file.data() + at, &value, sizeof(value));
}

// A Tokenizer::Sink; `tokens` outlives it.
inline auto AppendTo(std::vector<int32_t>& tokens) {
  return [&tokens](absl::Span<const int32_t> more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    return absl::OkStatus();
  };
}

inline std::vector<int32_t> Encoded(const Tokenizer& tokenizer, std::string_view text) {
  const absl::StatusOr<std::vector<int32_t>> tokens = tokenizer.Encode(text);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return tokens.value_or(std::vector<int32_t>());
}

// Lines of words made of few syllables, with indentation, tabs, runs of spaces, numbers, empty
// lines, other scripts and carriage returns, as in real texts.
inline std::string TestText(uint32_t seed, int lines) {
  static const char* const kSyllables[] = {"ta", "ren", "mo", "li", "sku", "e",  "ing", "the",
                                           "or", "an",  "be", "ch", "ai",  "no", "vel", "um"};
  static const char* const kOthers[] = {
      "\t", "  ", "    ",  " 1729 ", "\u00e9t\u00e9", ", ", "\u6f22", " \u03b1\u03b2",
      "!",  "\r", "\u20ac"};
  std::mt19937 random(seed);
  std::string text;
  for (int line = 0; line < lines; ++line) {
    if (random() % 9 == 0) text += "    ";
    for (uint32_t words = random() % 12; words > 0; --words) {
      for (uint32_t n = 1 + random() % 3; n > 0; --n) {
        // Early syllables are likelier, so that some words are frequent.
        text += kSyllables[random() % (1 + random() % std::size(kSyllables))];
      }
      text += random() % 8 == 0 ? kOthers[random() % std::size(kOthers)] : " ";
    }
    text += '\n';
  }
  return text;
}

// A model of 400 pieces, trained on TestText() once per program.
inline const std::string& TestModel(SentencePieceType type = SentencePieceType::kBpe) {
  const auto train = [](SentencePieceType of_type) {
    auto model = TrainSentencePiece(TestText(1, 800), {.vocabulary = 400, .type = of_type});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : std::string();
  };
  static const std::string bpe = train(SentencePieceType::kBpe);
  static const std::string unigram = train(SentencePieceType::kUnigram);
  return type == SentencePieceType::kBpe ? bpe : unigram;
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_DATA_TESTING_H_
