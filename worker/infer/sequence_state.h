// What the tokens of a sequence leave behind for those that follow: keys and values, convolution
// windows, recurrent states. One LayerState per block that keeps something.
//
// Ownership: a SequenceState owns its layers' states. Thread-safety: none; a state is advanced by
// one call at a time.
#ifndef NIBBLE_WORKER_INFER_SEQUENCE_STATE_H_
#define NIBBLE_WORKER_INFER_SEQUENCE_STATE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace nibble {

class LayerState {
 public:
  virtual ~LayerState() = default;
  // Becomes what `other`, of the same layer, is after `length` tokens; the capacities may differ,
  // but this one's is at least `length`.
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
  int64_t length() const { return length_; }  // tokens seen, which is the next one's position
  void Advance(int64_t tokens) { length_ += tokens; }

  // Null where the block keeps nothing.
  LayerState* layer(int64_t block) const { return layers_[static_cast<size_t>(block)].get(); }
  int64_t bytes() const {
    int64_t total = 0;
    for (const auto& layer : layers_) total += layer == nullptr ? 0 : layer->bytes();
    return total;
  }
  // As LayerState::CopyFrom, of every layer. `other` is of the same decoder.
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

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_SEQUENCE_STATE_H_
