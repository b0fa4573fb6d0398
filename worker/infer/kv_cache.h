// Keys and values of one attention layer of one sequence, by key head: [kv_heads, capacity,
// head_dim] each, so that a head's keys lie together.
//
// Ownership: owns its memory. Thread-safety: heads and positions may be written by several threads
// at once.
#ifndef NIBBLE_WORKER_INFER_KV_CACHE_H_
#define NIBBLE_WORKER_INFER_KV_CACHE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/tensor/memory.h"
#include "worker/infer/sequence_state.h"

namespace nibble {

template <class T>
class KvCache : public LayerState {
 public:
  // ResourceExhausted as Memory::Allocate.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Memory& memory, int64_t kv_heads,
                                                         int64_t capacity, int64_t head_dim) {
    const int64_t bytes = kv_heads * capacity * head_dim * static_cast<int64_t>(sizeof(T));
    absl::StatusOr<Buffer> keys = memory.Allocate(static_cast<size_t>(bytes));
    if (!keys.ok()) return keys.status();
    absl::StatusOr<Buffer> values = memory.Allocate(static_cast<size_t>(bytes));
    if (!values.ok()) return values.status();
    return std::unique_ptr<KvCache>(
        new KvCache(*std::move(keys), *std::move(values), kv_heads, capacity, head_dim));
  }

  void CopyFrom(const LayerState& other, int64_t length) override {
    const auto& from = static_cast<const KvCache&>(other);
    const auto bytes = static_cast<size_t>(length * head_dim_) * sizeof(T);
    for (int64_t h = 0; h < kv_heads_; ++h) {
      std::memcpy(keys() + h * head_stride(), from.keys() + h * from.head_stride(), bytes);
      std::memcpy(values() + h * head_stride(), from.values() + h * from.head_stride(), bytes);
    }
  }
  int64_t bytes() const override { return static_cast<int64_t>(keys_.bytes() + values_.bytes()); }

  int64_t head_stride() const { return capacity_ * head_dim_; }
  T* keys() const { return keys_.data<T>(); }
  T* values() const { return values_.data<T>(); }

 private:
  KvCache(Buffer keys, Buffer values, int64_t kv_heads, int64_t capacity, int64_t head_dim)
      : keys_(std::move(keys)),
        values_(std::move(values)),
        kv_heads_(kv_heads),
        capacity_(capacity),
        head_dim_(head_dim) {}

  Buffer keys_, values_;
  int64_t kv_heads_, capacity_, head_dim_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_KV_CACHE_H_
