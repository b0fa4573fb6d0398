// A trained model at work on the CPU: tokens in, FP32 logits out, with what a sequence has seen
// kept in its SequenceState, so that no token is ever run twice.
//
// A call runs pieces: tokens that follow what their sequences have seen. Pieces are put together
// and run in passes of at most `pass_tokens` rows, which bounds the memory whatever the lengths.
// Few rows (decoding) go through kernels that read each weight once; many (a prompt) through the
// matrix units. Logits of the two agree but for the order of FP32 additions, and in BF16 for what
// that does to roundings; neither depends on the number of threads.
//
// In FP32 all is FP32. In BF16 weights of linears, tables, activations, keys and values are BF16
// (rounded where training in BF16 rounds), sums, convolution windows and recurrent states FP32.
//
// Ownership: owns its threads, weights and memory; sequences are the caller's and must not outlive
// it. Thread-safety: one call at a time, of all sequences together.
#ifndef NIBBLE_WORKER_INFER_DECODER_H_
#define NIBBLE_WORKER_INFER_DECODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops/norm_ops.h"
#include "model/outline.h"
#include "worker/infer/decode_device.h"
#include "worker/infer/decode_mixer.h"
#include "worker/infer/loaded_weights.h"
#include "worker/infer/sequence_state.h"
#include "worker/trainer/model/region.h"
#include "worker/trainer/model/tensors.h"
#include "worker/weights/weight_source.h"

namespace nibble {

struct DecoderOptions {
  DType precision = DType::kBf16;
  int threads = 0;            // 0: every processor
  int64_t max_sequence = 0;   // tokens of the longest sequence, 1 … 2^24
  int64_t pass_tokens = 256;  // 1 … 2^16
};

class Decoder {
 public:
  // Reads the weights; the source is not needed afterwards. InvalidArgument naming the option, its
  // value and the bound; otherwise as WeightSource::Read.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(WeightSource& source,
                                                         const DecoderOptions& options);

  const Outline& outline() const { return weights_.outline(); }
  int64_t vocab() const { return outline().spec.vocab; }
  const DecoderOptions& options() const { return options_; }
  ThreadPool& pool() { return device_->pool; }

  // An empty sequence that can take `capacity` tokens. InvalidArgument for a capacity outside
  // [1, max_sequence].
  absl::StatusOr<std::unique_ptr<SequenceState>> NewSequence(int64_t capacity);

  // Whether a sequence of so many tokens can be: OutOfRange naming max_sequence or the model's
  // learned positions.
  absl::Status CheckLength(int64_t tokens) const;
  // `to` becomes what `from` is. InvalidArgument where one is not of this decoder, OutOfRange where
  // `to` has too little capacity.
  absl::Status CopySequence(const SequenceState& from, SequenceState& to) const;

  // What Run, Prefill, Step and Losses say of tokens that cannot follow; the sequences are
  // as before:
  //
  //   OutOfRange       more tokens than the sequence's capacity, or than the model's learned
  //                    positions
  //   InvalidArgument  a token outside the vocabulary, a sequence of another decoder, or one that
  //                    stands in two pieces of a call
  //
  // After any other error the sequences are of no use.

  struct Piece {
    SequenceState* sequence = nullptr;
    absl::Span<const int32_t> tokens;
  };
  // Which token of a call a row of logits belongs to: what follows that token.
  struct Place {
    int64_t piece = 0;
    int64_t token = 0;
  };
  enum class Wanted : uint8_t { kNone, kLast, kAll };  // of each piece
  // logits: [places.size(), vocab] FP32, the sink's to change. Places come in the order of pieces
  // and tokens, some at a time. An error ends the run and is returned.
  using LogitsSink = absl::FunctionRef<absl::Status(absl::Span<const Place> places, float* logits)>;
  absl::Status Run(absl::Span<const Piece> pieces, Wanted wanted, LogitsSink sink);

  // The tokens of one sequence. logits: [vocab] of what follows the last, or nothing.
  absl::Status Prefill(SequenceState& sequence, absl::Span<const int32_t> tokens,
                       absl::Span<float> logits);
  // logits: [tokens.size(), vocab].
  absl::Status PrefillAll(SequenceState& sequence, absl::Span<const int32_t> tokens,
                          absl::Span<float> logits);
  absl::Status Step(SequenceState& sequence, int32_t token, absl::Span<float> logits) {
    return Prefill(sequence, absl::MakeConstSpan(&token, 1), logits);
  }
  // One token of each of several sequences; logits: [tokens.size(), vocab].
  absl::Status StepAll(absl::Span<SequenceState* const> sequences, absl::Span<const int32_t> tokens,
                       absl::Span<float> logits);

  // −ln p(target) of what follows each token: targets[i] and losses[i] are as long as the tokens
  // of piece i; a target of −1 is not asked for, and its loss is 0. InvalidArgument also for
  // lengths that differ and targets outside the vocabulary.
  absl::Status Losses(absl::Span<const Piece> pieces,
                      absl::Span<const absl::Span<const int32_t>> targets,
                      absl::Span<const absl::Span<float>> losses);

  // Bytes of weights that decoding one token reads, of embeddings one row.
  int64_t weight_bytes_per_token() const;
  int64_t weight_bytes() const { return weights_.bytes(); }

 private:
  struct Block {
    NormParams norm;
    std::unique_ptr<DecodeMixer> mixer;
  };

  Decoder(std::unique_ptr<DecodeDevice> device, LoadedWeights weights,
          const DecoderOptions& options);

  absl::Status Build();
  absl::Status Plan();
  absl::StatusOr<NormParams> FindNorm(const std::string& prefix) const;
  absl::Status Check(absl::Span<const Piece> pieces) const;
  absl::Status RunPass(absl::Span<const RowPiece> pieces, int64_t rows);
  void Embed(absl::Span<const RowPiece> pieces, int64_t rows);
  absl::Status Norm(const NormParams& norm, bool add, int64_t rows);
  absl::Status EmitLogits(absl::Span<const int64_t> rows, absl::Span<const Place> places,
                          LogitsSink sink);

  std::unique_ptr<DecodeDevice> device_;
  LoadedWeights weights_;
  DecoderOptions options_;
  ConstMatrix embedding_, positions_, head_;
  Region scratch_;  // what the mixers work in, one after the other
  std::vector<Block> blocks_;
  NormParams final_norm_;
  int64_t logit_rows_ = 0;

  // Of one pass.
  std::vector<int32_t> tokens_;
  ActivationBuffer stream_;  // [rows, d_model]
  ActivationBuffer normed_;  // [rows, d_model]
  ActivationBuffer mixed_;   // [rows, d_model]
  Buffer mean_, rstd_;       // [rows]
  ActivationBuffer asked_;   // [logit_rows, d_model]
  ActivationBuffer logits_;  // [logit_rows, vocab] FP32
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_DECODER_H_
