#include "worker/infer/model_choice.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

absl::StatusOr<std::shared_ptr<const Tokenizer>> ChooseTokenizer(const WeightSource& source,
                                                                 const std::string& named) {
  std::shared_ptr<const Tokenizer> tokenizer = source.tokenizer();
  if (!named.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> other, LoadTokenizer(named));
    if (tokenizer != nullptr && tokenizer->label() != other->label()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer: ", named, " is \"", other->label(), "\", but ",
                       source.description(), " was trained with \"", tokenizer->label(), "\""));
    }
    tokenizer = std::move(other);
  }
  if (tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tokenizer: ", source.description(),
        " does not know its own; name it: bytes, a SentencePiece .model or a tokenizer.json"));
  }
  const int64_t vocab = source.outline().spec.vocab;
  if (tokenizer->vocabulary() > vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: the vocabulary of \"", tokenizer->label(), "\", ",
                     tokenizer->vocabulary(), ", is over the model's, ", vocab));
  }
  return tokenizer;
}

absl::StatusOr<DType> ParsePrecision(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("precision: '", name, "' is neither fp32 nor bf16"));
}

int64_t LongestSequence(const Outline& outline) {
  constexpr int64_t kUnbounded = int64_t{1} << 24;
  return outline.spec.positions == Positions::kLearned ? outline.spec.max_positions : kUnbounded;
}

std::optional<std::string> BeyondTraining(const WeightSource& source, int64_t tokens) {
  const std::optional<int64_t> trained = source.trained_sequence();
  if (!trained.has_value() || tokens <= *trained) return std::nullopt;
  return absl::StrCat("sequences of ", tokens, " tokens are beyond the ", *trained,
                      " that the model was trained on; expect worse figures there");
}

}  // namespace nibble
