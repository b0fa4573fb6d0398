// One mixer of a block in decoding, and the sequence state that mixers keep between tokens: keys
// and values, convolution windows, recurrent states. A new mixer is one file that implements
// DecodeMixer and one line in decode_mixer.cc (as in training and in model/mixers).
//
// Ownership: a SequenceState owns its layers' states; mixers borrow device and weights, and own
// their working memory. Thread-safety: as DecodeDevice; a state is advanced by one call at a time.
#ifndef NIBBLE_WORKER_INFER_DECODE_MIXER_H_
#define NIBBLE_WORKER_INFER_DECODE_MIXER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/memory.h"
#include "worker/infer/loaded_weights.h"

namespace nibble {

class LayerState {
 public:
  virtual ~LayerState() = default;
  // Copies the state of `other`, of the same layer, after `length` tokens. The capacities may
  // differ, but this one's is at least `length`.
  virtual void CopyFrom(const LayerState& other, int64_t length) = 0;
  virtual int64_t bytes() const = 0;
};

class SequenceState {
 public:
  // Made by Decoder::NewSequence. `owner` names the decoder.
  SequenceState(const void* owner, int64_t capacity,
                std::vector<std::unique_ptr<LayerState>> layers)
      : owner_(owner), capacity_(capacity), layers_(std::move(layers)) {}

  const void* owner() const { return owner_; }
  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }  // tokens run, and the position of the next
  void Advance(int64_t tokens) { length_ += tokens; }

  // Null if the block keeps no state.
  LayerState* layer(int64_t block) const { return layers_[static_cast<size_t>(block)].get(); }
  int64_t bytes() const {
    int64_t total = 0;
    for (const auto& layer : layers_) total += layer == nullptr ? 0 : layer->bytes();
    return total;
  }
  // Applies LayerState::CopyFrom to every layer. `other` belongs to the same decoder.
  void CopyFrom(const SequenceState& other) {
    length_ = other.length_;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i] != nullptr) layers_[i]->CopyFrom(*other.layers_[i], length_);
    }
  }

 private:
  const void* owner_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<std::unique_ptr<LayerState>> layers_;
};

// Rows [row, row + rows) of a pass: consecutive tokens of one sequence, the first at `position`.
struct RowPiece {
  SequenceState* sequence = nullptr;
  int64_t row = 0;
  int64_t rows = 0;
  int64_t position = 0;
};

class DecodeMixer {
 public:
  virtual ~DecodeMixer() = default;

  // The state of an empty sequence that may grow to `capacity` tokens; null if the mixer keeps no
  // state.
  virtual absl::StatusOr<std::unique_ptr<LayerState>> NewState(int64_t capacity) = 0;
  // Allocates working memory for passes of up to `rows`. All blocks share `scratch`: a mixer may
  // use it only during Forward.
  virtual absl::Status Allocate(int64_t rows, Memory& scratch) = 0;

  // y = mixer(x) for the tokens of all pieces; advances their states. x, y: [rows, d_model]; the
  // pieces cover the rows, in order, and are of different sequences.
  virtual absl::Status Forward(absl::Span<const RowPiece> pieces, const ConstMatrix& x,
                               const MutableMatrix& y) = 0;
};

// The mixer of block `block`. Internal for a symbol without a mixer.
absl::StatusOr<std::unique_ptr<DecodeMixer>> MakeDecodeMixer(DecodeDevice& device,
                                                             const LoadedWeights& weights,
                                                             int64_t block);

// Factories of the mixers.
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
