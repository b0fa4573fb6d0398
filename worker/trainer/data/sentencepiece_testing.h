// What the SentencePiece tests share: a text of many lines and models that are trained on it, once
// per program.
//
// Thread-safety: pure; the models are made under the language's guard.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TESTING_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TESTING_H_

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "worker/trainer/data/sentencepiece_training.h"

namespace nibble {

// Lines of words that are made of few syllables, with what real texts have besides: indentation,
// tabs, runs of spaces, numbers, empty lines, other scripts, carriage returns.
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

// A model of 400 pieces.
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

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_TESTING_H_
