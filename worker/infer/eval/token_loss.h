// Loss and perplexity of a trained model on token data: every window of the data once, with the
// document boundaries of training's validation.
//
// Ownership: borrows the decoder, shares the source. Thread-safety: as Decoder.
#ifndef NIBBLE_WORKER_INFER_EVAL_TOKEN_LOSS_H_
#define NIBBLE_WORKER_INFER_EVAL_TOKEN_LOSS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/infer/decoder.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

struct TokenLossOptions {
  int64_t sequence = 0;     // tokens of a window
  int64_t max_windows = 0;  // at most this number, from the first; 0: all
  WindowOptions window;
};

struct TokenLoss {
  std::string name;  // of the source
  int64_t windows = 0;
  int64_t tokens = 0;     // scored targets
  double loss = 0;        // mean of −ln p over the scored targets
  double perplexity = 0;  // e^loss
};

// Called after some windows with the number done and the total.
using WindowProgress = std::function<void(int64_t done, int64_t windows)>;

// Sums in FP64 in the data's order, so the result depends neither on the number of threads nor on
// the batching of windows.
//
//   InvalidArgument  as ValidationSet::Create; tokens that the model has no place for; no target
//                    that counts
//   OutOfRange       windows longer than the decoder takes
//   any other        of the source and of Decoder
absl::StatusOr<TokenLoss> EvaluateTokens(Decoder& decoder,
                                         std::shared_ptr<const TokenSource> source,
                                         const TokenLossOptions& options,
                                         const WindowProgress& progress);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_EVAL_TOKEN_LOSS_H_
