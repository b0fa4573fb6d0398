#include "worker/trainer/data/sentencepiece_training.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/sentencepiece_library.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

// The library skips sentences above its configured maximum, so longer lines are cut.
constexpr size_t kMaxSentenceBytes = size_t{1} << 16;
// U+2585, which the library uses for rare characters; it skips sentences that contain it.
constexpr std::string_view kReserved = "\xe2\x96\x85";

// Removes and returns the next sentence: a line, or a part of a line that the library would skip.
// Empty only at the end of the text.
std::string TakeSentence(std::string_view& rest) {
  while (!rest.empty()) {
    std::string_view sentence = rest.substr(0, rest.find('\n'));
    size_t after = sentence.size() + 1;
    if (const size_t reserved = sentence.find(kReserved); reserved != std::string_view::npos) {
      sentence = sentence.substr(0, reserved);
      after = reserved + kReserved.size();
    }
    if (sentence.size() > kMaxSentenceBytes) {
      after = kMaxSentenceBytes;
      while ((sentence[after] & 0xc0) == 0x80) --after;  // to the first byte of a character
      sentence = sentence.substr(0, after);
    }
    rest.remove_prefix(std::min(after, rest.size()));
    if (!sentence.empty()) return std::string(sentence);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> TrainSentencePiece(std::string_view text,
                                               const SentencePieceTraining& training) {
  using Training = SentencePieceTraining;
  if (training.vocabulary < Training::kMinVocabulary ||
      training.vocabulary > Training::kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrFormat("vocabulary is %d, not in [%d, %d]", training.vocabulary,
                        int64_t{Training::kMinVocabulary}, int64_t{Training::kMaxVocabulary}));
  }
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text to train on is not UTF-8 at byte %d", bad));
  }
  if (text.find_first_not_of('\n') == std::string_view::npos) {
    return absl::InvalidArgumentError("there is no text to train on");
  }
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", training.type == SentencePieceType::kBpe ? "bpe" : "unigram"},
      {"vocab_size", absl::StrCat(training.vocabulary)},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", absl::StrCat(kMaxSentenceBytes)},
      // Sums of scores depend on how the sentences are divided among threads.
      {"num_threads", "1"},
      {"minloglevel", "2"},
  };
  std::string model;
  std::string_view rest = text;
  const sentencepiece_internal::Error error = sentencepiece_internal::Train(
      options, [&] { return TakeSentence(rest); }, model);
  if (!error.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "training a SentencePiece model of %d pieces on %d bytes of text failed: %s",
        training.vocabulary, text.size(), error));
  }
  return model;
}

}  // namespace nibble
