#include "worker/infer/eval/token_loss.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "worker/trainer/data/batch_builder.h"

namespace nibble {
namespace {

// Windows whose documents run in one batch, and their losses.
class WindowGroup {
 public:
  explicit WindowGroup(Decoder& decoder) : decoder_(decoder) {}

  int64_t tokens() const { return tokens_; }
  int64_t windows() const { return static_cast<int64_t>(batches_.size()); }
  void Add(Batch batch) {
    tokens_ += batch.length;
    batches_.push_back(std::move(batch));
  }

  // Adds to `sum` in the order of the tokens, and forgets the windows.
  absl::Status Run(double& sum, int64_t& counted) {
    std::vector<std::unique_ptr<SequenceState>> states;
    std::vector<Decoder::Piece> pieces;
    std::vector<absl::Span<const int32_t>> targets;
    std::vector<absl::Span<float>> losses;
    std::vector<float> loss(static_cast<size_t>(tokens_));
    size_t at = 0;
    for (const Batch& batch : batches_) {
      const auto length = static_cast<size_t>(batch.length);
      for (size_t begin = 0, end; begin < length; begin = end) {
        // A document that does not attend to earlier ones is a separate sequence.
        end = begin + 1;
        while (end < length && batch.doc_begin[end] == batch.doc_begin[begin]) ++end;
        NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceState> state,
                                decoder_.NewSequence(static_cast<int64_t>(end - begin)));
        states.push_back(std::move(state));
        pieces.push_back(
            {states.back().get(), absl::MakeConstSpan(batch.tokens).subspan(begin, end - begin)});
        targets.push_back(absl::MakeConstSpan(batch.targets).subspan(begin, end - begin));
        losses.push_back(absl::MakeSpan(loss).subspan(at + begin, end - begin));
      }
      at += length;
    }
    NIBBLE_RETURN_IF_ERROR(decoder_.Losses(pieces, targets, losses));
    at = 0;
    for (const Batch& batch : batches_) {
      for (const int32_t target : batch.targets) {
        sum += loss[at++];
        counted += target == kIgnoredTarget ? 0 : 1;
      }
    }
    batches_.clear();
    tokens_ = 0;
    return absl::OkStatus();
  }

 private:
  Decoder& decoder_;
  std::vector<Batch> batches_;
  int64_t tokens_ = 0;
};

}  // namespace

absl::StatusOr<TokenLoss> EvaluateTokens(Decoder& decoder,
                                         std::shared_ptr<const TokenSource> source,
                                         const TokenLossOptions& options,
                                         const WindowProgress& progress) {
  NIBBLE_ASSIGN_OR_RETURN(const ValidationSet set,
                          ValidationSet::Create(source, {.global_sequences = 1,
                                                         .length = options.sequence,
                                                         .max_batches = options.max_windows,
                                                         .window = options.window}));
  NIBBLE_RETURN_IF_ERROR(decoder.CheckLength(options.sequence));
  if (source->vocabulary() > decoder.vocab()) {
    return absl::InvalidArgumentError(absl::StrCat(source->name(), ": vocabulary is ",
                                                   source->vocabulary(), ", over the model's, ",
                                                   decoder.vocab()));
  }
  TokenLoss result = {.name = source->name(), .windows = set.batches()};
  WindowGroup group(decoder);
  double sum = 0;
  for (int64_t i = 0; i < set.batches(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(Batch batch, set.Build({.step = i}));
    group.Add(std::move(batch));
    if (group.tokens() < decoder.options().pass_tokens && i + 1 < set.batches()) continue;
    if (absl::Status status = group.Run(sum, result.tokens); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(source->name(), ": ", status.message()));
    }
    if (progress) progress(i + 1, set.batches());
  }
  if (result.tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat(source->name(), ": none of its targets counts"));
  }
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace nibble
