// The state of one sequence between forward passes, mixer by mixer, so that no token runs twice:
// keys and values, convolution windows, recurrent states.
//
// Ownership: a SequenceState owns the states of its mixers, and these their tensors, in a device's
// memory that outlives them. Thread-safety: a sequence is advanced by one pass at a time.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_SEQUENCE_STATE_H_
#define NIBBLE_WORKER_TRAINER_MODEL_SEQUENCE_STATE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "kernels/ops/queue.h"
#include "kernels/tensor/memory.h"

namespace nibble {

// The tensors of one mixer, numbered in the order in which it adds them.
class MixerState {
 public:
  // [lines, capacity, token_bytes]: each line has an entry per token. Its contents are undefined
  // until written. ResourceExhausted as Memory::Allocate.
  absl::Status AddPerToken(Memory& memory, int64_t lines, int64_t capacity, int64_t token_bytes) {
    return Add(memory,
               {.lines = lines, .line_bytes = capacity * token_bytes, .token_bytes = token_bytes});
  }
  // `bytes` bytes, zero, whatever the length of the sequence.
  absl::Status AddFixed(Memory& memory, int64_t bytes) {
    NIBBLE_RETURN_IF_ERROR(Add(memory, {.lines = 1, .line_bytes = bytes}));
    const std::vector<char> zeros(static_cast<size_t>(bytes));
    return memory.CopyIn(tensors_.back().data.data(), zeros.data(), zeros.size());
  }

  template <class T>
  T* tensor(size_t i) const {
    return tensors_[i].data.data<T>();
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (const Tensor& tensor : tensors_) total += static_cast<int64_t>(tensor.data.bytes());
    return total;
  }

  // Enqueues a copy of the state of `other`, of the same mixer, after `length` tokens; each has a
  // capacity of at least `length`.
  absl::Status CopyFrom(const MixerState& other, int64_t length, Queue& queue) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor &to = tensors_[i], &from = other.tensors_[i];
      const int64_t bytes = to.token_bytes > 0 ? length * to.token_bytes : to.line_bytes;
      NIBBLE_RETURN_IF_ERROR(queue.Copy({.to = to.data.data(),
                                         .from = from.data.data(),
                                         .line_bytes = static_cast<size_t>(bytes),
                                         .lines = static_cast<size_t>(to.lines),
                                         .to_pitch = static_cast<size_t>(to.line_bytes),
                                         .from_pitch = static_cast<size_t>(from.line_bytes)}));
    }
    return absl::OkStatus();
  }

 private:
  struct Tensor {
    int64_t lines = 0;
    int64_t line_bytes = 0;
    int64_t token_bytes = 0;  // 0: of fixed size
    Buffer data;
  };

  absl::Status Add(Memory& memory, Tensor tensor) {
    // Never null: a convolution of one tap has an empty window, which is cleared and copied too.
    const int64_t bytes = std::max<int64_t>(1, tensor.lines * tensor.line_bytes);
    NIBBLE_ASSIGN_OR_RETURN(tensor.data, memory.Allocate(static_cast<size_t>(bytes)));
    tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  std::vector<Tensor> tensors_;
};

class SequenceState {
 public:
  // `owner` identifies the model that may run the sequence; `mixers`: by block, null if a block's
  // mixer keeps no state.
  SequenceState(const void* owner, int64_t capacity,
                std::vector<std::unique_ptr<MixerState>> mixers)
      : owner_(owner), capacity_(capacity), mixers_(std::move(mixers)) {}

  const void* owner() const { return owner_; }
  int64_t capacity() const { return capacity_; }  // in tokens
  int64_t length() const { return length_; }      // tokens run, and the position of the next
  void Advance(int64_t tokens) { length_ += tokens; }

  MixerState& mixer(int64_t block) const { return *mixers_[static_cast<size_t>(block)]; }
  // `other` has the same owner, and no more tokens than this one's capacity.
  absl::Status CopyFrom(const SequenceState& other, Queue& queue) {
    length_ = other.length_;
    for (size_t i = 0; i < mixers_.size(); ++i) {
      if (mixers_[i] == nullptr) continue;
      NIBBLE_RETURN_IF_ERROR(mixers_[i]->CopyFrom(*other.mixers_[i], length_, queue));
    }
    return absl::OkStatus();
  }

 private:
  const void* owner_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<std::unique_ptr<MixerState>> mixers_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_SEQUENCE_STATE_H_
