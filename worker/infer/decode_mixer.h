// One mixer of a block, as decoding sees it. A new mixer is one file that implements this, and one
// line in decode_mixers.cc (beside those of training and of model/mixers).
//
// Ownership: mixers borrow device and weights, and own the memory they work in.
// Thread-safety: as DecodeDevice.
#ifndef NIBBLE_WORKER_INFER_DECODE_MIXER_H_
#define NIBBLE_WORKER_INFER_DECODE_MIXER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"
#include "worker/infer/decode_device.h"
#include "worker/infer/loaded_weights.h"
#include "worker/infer/sequence_state.h"

namespace nibble {

class DecodeMixer {
 public:
  virtual ~DecodeMixer() = default;

  // The state of an empty sequence that may grow to `capacity` tokens; null where nothing is kept.
  virtual absl::StatusOr<std::unique_ptr<LayerState>> NewState(int64_t capacity) = 0;
  // Memory to work in, for passes of up to `rows`. What lies in `scratch` is the mixer's during
  // Forward only: all blocks share it.
  virtual absl::Status Allocate(int64_t rows, Memory& scratch) = 0;

  // y = mixer(x) for the tokens of all pieces, whose states move on past them. x, y: [rows,
  // d_model]; the pieces cover the rows, in order, and are of different sequences.
  virtual absl::Status Forward(absl::Span<const RowPiece> pieces, const ConstMatrix& x,
                               const MutableMatrix& y) = 0;
};

// The mixer of block `block`. Internal for a symbol without one.
absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeDecodeMixer(DecodeDevice& device,
                                                             const LoadedWeights& weights,
                                                             int64_t block);

// Their factories, each in the file of its name under mixers/.
absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeMamba2Decoder(DecodeDevice& device,
                                                               const LoadedWeights& weights,
                                                               int64_t block);
absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeAttentionDecoder(DecodeDevice& device,
                                                                  const LoadedWeights& weights,
                                                                  int64_t block);
absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeMlpDecoder(DecodeDevice& device,
                                                            const LoadedWeights& weights,
                                                            int64_t block);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_DECODE_MIXER_H_
