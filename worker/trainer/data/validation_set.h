// Validation batches: every window of a held-out source once, in the source's order; the same at
// every step, whatever the seed and the number of ranks.
//
// All batches have the same number of sequences. Where the last windows do not fill one, the last
// window is repeated with every target ignored, so that it counts nowhere and shows nothing new to
// statistics over the batch.
//
// Ownership: shares the token source. Thread-safety: immutable; Build() may run in several threads
// at once.
#ifndef NIBBLE_WORKER_TRAINER_DATA_VALIDATION_SET_H_
#define NIBBLE_WORKER_TRAINER_DATA_VALIDATION_SET_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/batch_slice.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

struct ValidationOptions {
  int64_t global_sequences = 0;  // per batch, over all ranks and micro-batches
  int64_t length = 0;            // tokens of a sequence
  int64_t max_batches = 0;       // the first so many only; 0: all
  WindowOptions window;
};

class ValidationSet {
 public:
  // InvalidArgument naming the field or the source, the value and the bound.
  static absl::StatusOr<ValidationSet> Create(std::shared_ptr<const TokenSource> source,
                                              const ValidationOptions& options);

  int64_t batches() const { return batches_; }

  // Part of batch `slice.step` in [0, batches()); the mapping is that of training (batch_slice.h).
  // OutOfRange past the last batch; otherwise as SliceRange(), MakeBatch() and TokenSource::Read().
  absl::StatusOr<Batch> Build(const BatchSlice& slice) const;

 private:
  ValidationSet(std::shared_ptr<const TokenSource> source, const ValidationOptions& options,
                int64_t windows, int64_t batches)
      : source_(std::move(source)), options_(options), windows_(windows), batches_(batches) {}

  std::shared_ptr<const TokenSource> source_;
  ValidationOptions options_;
  int64_t windows_;
  int64_t batches_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_VALIDATION_SET_H_
