// Memory planned once: a region is measured by asking for everything, committed in one allocation,
// then asked for the same things again in the same order. No step allocates.
//
// It is a Memory, so that quantised tensors and plain buffers are planned alike.
//
// Ownership: owns its one allocation; buffers handed out point into it and own nothing. The parent
// memory outlives it. Thread-safety: none.
#ifndef NIBBLE_WORKER_TRAINER_MODEL_REGION_H_
#define NIBBLE_WORKER_TRAINER_MODEL_REGION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/memory.h"

namespace nibble {

class Region : public Memory {
 public:
  explicit Region(Memory& parent) : parent_(parent) {}

  // Before Commit: an address that stands for one and must not be touched. After: the real one.
  // Internal where more is asked for than was measured.
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override;

  // Everything handed out so far may be handed out again: what comes next shares its memory.
  void Rewind() { used_ = 0; }
  // Allocates the most that was in use at once, and rewinds.
  absl::Status Commit();
  // Forgets the measure and frees the memory; buffers handed out are dead.
  void Clear();

  size_t bytes() const { return committed_ ? memory_.bytes() : peak_; }

 private:
  void Free(void*) override {}

  Memory& parent_;
  Buffer memory_;
  bool committed_ = false;
  size_t used_ = 0;
  size_t peak_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_MODEL_REGION_H_
