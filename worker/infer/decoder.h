// Runs a trained model on the CPU or a card: tokens in, FP32 logits out. The mixers are those of
// training (worker/trainer/model); each sequence keeps their state in a SequenceState, so that no
// token runs twice.
//
// A call runs pieces: tokens that continue their sequences. Pieces are batched into passes of at
// most `pass_tokens` rows, which bounds the memory for any length. Passes of few rows (decoding)
// use kernels that read each weight once; passes of many rows (a prompt) use the matrix units. The
// logits of the two differ only by the order of FP32 additions, and in BF16 by the roundings that
// follow from it; neither depends on the number of threads.
//
// With FP32 precision everything is FP32. With BF16, weights of linears, tables, activations, keys
// and values are BF16 (rounded where training in BF16 rounds); sums, convolution windows and
// recurrent states are FP32.
//
// Ownership: owns its threads, weights and memory; sequences belong to the caller and must not
// outlive it. Thread-safety: one call at a time, over all sequences.
#ifndef NIBBLE_WORKER_INFER_DECODER_H_
#define NIBBLE_WORKER_INFER_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops/norm_ops.h"
#include "kernels/ops/sequence.h"
#include "model/outline.h"
#include "worker/infer/decode_device.h"
#include "worker/infer/loaded_weights.h"
#include "worker/trainer/model/mixer.h"
#include "worker/trainer/model/region.h"
#include "worker/trainer/model/sequence_state.h"
#include "worker/weights/weight_source.h"

namespace nibble {

struct DecoderOptions {
  DType precision = DType::kBf16;
  DecodeOn on = DecodeOn::kCpu;
  int threads = 0;            // of the CPU; 0: every processor
  int64_t max_sequence = 0;   // tokens of the longest sequence, 1 … 2^24
  int64_t pass_tokens = 256;  // 1 … 2^16
};

class Decoder {
 public:
  // Reads the weights; the source is not needed afterwards. InvalidArgument, naming the option, its
  // value and the bound; otherwise as WeightSource::Read.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(WeightSource& source,
                                                         const DecoderOptions& options);
  // On this device, whatever `options` say of one.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(WeightSource& source,
                                                         std::unique_ptr<DecodeDevice> device,
                                                         const DecoderOptions& options);

  const Outline& outline() const { return weights_.outline(); }
  int64_t vocab() const { return outline().spec.vocab; }
  const DecoderOptions& options() const { return options_; }
  DecodeDevice& device() { return *device_; }

  // An empty sequence for up to `capacity` tokens. InvalidArgument for a capacity outside [1,
  // max_sequence].
  absl::StatusOr<std::unique_ptr<SequenceState>> NewSequence(int64_t capacity);

  // Checks the length of a sequence: OutOfRange, naming max_sequence or the model's learned
  // positions.
  absl::Status CheckLength(int64_t tokens) const;
  // Copies `from` to `to`. InvalidArgument if either belongs to another decoder, OutOfRange if `to`
  // has too little capacity.
  absl::Status CopySequence(const SequenceState& from, SequenceState& to) const;

  // Errors of Run, Prefill, Step and Losses that leave the sequences unchanged:
  //
  //   OutOfRange       more tokens than the sequence's capacity, or than the model's learned
  //                    positions
  //   InvalidArgument  a token outside the vocabulary, a sequence of another decoder, or one that
  //                    appears in two pieces of a call
  //
  // After any other error the sequences are unusable.

  struct Piece {
    SequenceState* sequence = nullptr;
    absl::Span<const int32_t> tokens;
  };
  // The token of a call whose successor a row of logits predicts.
  struct Place {
    int64_t piece = 0;
    int64_t token = 0;
  };
  enum class Wanted : uint8_t { kNone, kLast, kAll };  // of each piece
  // logits: [places.size(), vocab] FP32; the sink may change them. Places come in batches, in the
  // order of pieces and tokens. An error ends the run and is returned.
  using LogitsSink = absl::FunctionRef<absl::Status(absl::Span<const Place> places, float* logits)>;
  absl::Status Run(absl::Span<const Piece> pieces, Wanted wanted, LogitsSink sink);

  // Runs tokens of one sequence. logits: [vocab] after the last token, or empty.
  absl::Status Prefill(SequenceState& sequence, absl::Span<const int32_t> tokens,
                       absl::Span<float> logits);
  absl::Status Step(SequenceState& sequence, int32_t token, absl::Span<float> logits) {
    return Prefill(sequence, absl::MakeConstSpan(&token, 1), logits);
  }

  // −ln p(target) after each token: targets[i] and losses[i] are as long as the tokens of piece i;
  // a target of −1 is skipped, and its loss is 0. InvalidArgument also for different lengths and
  // targets outside the vocabulary.
  absl::Status Losses(absl::Span<const Piece> pieces,
                      absl::Span<const absl::Span<const int32_t>> targets,
                      absl::Span<const absl::Span<float>> losses);

  // Bytes of weights that decoding one token reads; one row of the embedding.
  int64_t weight_bytes_per_token() const;

 private:
  struct Block {
    NormParams norm;
    std::unique_ptr<Mixer> mixer;
  };
  // The rows of one forward pass.
  struct Pass {
    std::vector<Continuation> pieces;
    std::vector<SequenceState*> sequences;  // by piece
    int64_t rows = 0;
    // Rows whose logits are wanted, and the places of their tokens in the call.
    std::vector<int64_t> wanted;
    std::vector<Place> places;
  };

  Decoder(std::unique_ptr<DecodeDevice> device, LoadedWeights weights,
          const DecoderOptions& options);

  absl::Status Build();
  absl::Status Plan();
  absl::Status Check(absl::Span<const Piece> pieces) const;
  absl::Status RunPass(const Pass& pass);
  // normed = norm(stream), after stream += mixed if `add`.
  absl::Status Norm(const NormParams& norm, bool add, int64_t rows);
  // logits: [places.size(), vocab] FP32, on the device.
  using DeviceSink =
      absl::FunctionRef<absl::Status(absl::Span<const Place> places, const MutableMatrix& logits)>;
  absl::Status RunOnDevice(absl::Span<const Piece> pieces, Wanted wanted, DeviceSink sink);
  absl::Status EmitLogits(const Pass& pass, DeviceSink sink);

  std::unique_ptr<DecodeDevice> device_;
  LoadedWeights weights_;
  DecoderOptions options_;
  ConstMatrix embedding_, positions_, head_;
  // Working memory of the mixers, one at a time. The other stays empty: only quantised layers use
  // it.
  Region scratch_, unused_;
  std::vector<Block> blocks_;
  NormParams final_norm_;
  int64_t logit_rows_ = 0;

  // State of one pass.
  std::vector<int32_t> tokens_;
  Buffer device_tokens_;     // [rows]
  ActivationBuffer stream_;  // [rows, d_model]
  ActivationBuffer normed_;  // [rows, d_model]
  ActivationBuffer mixed_;   // [rows, d_model]
  Buffer mean_, rstd_;       // [rows]
  ActivationBuffer wanted_;  // [logit_rows, d_model], the rows of normed_ whose logits are wanted
  ActivationBuffer logits_;  // [logit_rows, vocab] FP32
  Buffer targets_, losses_;  // [logit_rows]
  std::vector<float> host_logits_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_DECODER_H_
