// Builds the batches of training (BatchBuilder) and validation (ValidationSet) from token sources.
//
// Ownership: shares the token sources. Thread-safety: immutable; Build() may run in several threads
// at once.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BATCH_BUILDER_H_
#define NIBBLE_WORKER_TRAINER_DATA_BATCH_BUILDER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

struct BlendedSource {
  std::shared_ptr<const TokenSource> source;
  int64_t weight = 1;  // whole parts: 70, 20, 10 (see Blend)
};

struct BatchOptions {
  uint64_t seed = 0;
  int64_t global_sequences = 0;  // per step, over all ranks and micro-batches
  int64_t length = 0;            // tokens of a sequence
  WindowOptions window;
};

// Training batches: pure functions of the seed and the requested slice.
class BatchBuilder {
 public:
  // InvalidArgument, naming the field or the source, the value and the bound, unless every source
  // has tokens for a sample and all have the same tokenizer and vocabulary.
  static absl::StatusOr<BatchBuilder> Create(std::vector<BlendedSource> sources,
                                             const BatchOptions& options);

  // With a blend in phases over a run of `steps` steps; the weights of a phase are in the order of
  // the sources. With one phase the batches are those of the overload above with its weights, for
  // any number of steps. Errors also as PhasedBlend::Create().
  static absl::StatusOr<BatchBuilder> Create(
      std::vector<std::shared_ptr<const TokenSource>> sources, std::vector<BlendPhase> phases,
      int64_t steps, const BatchOptions& options);

  // The sequences of `slice`, in the order of their global indices. Errors as SliceRange(),
  // MakeBatch() and TokenSource::Read().
  absl::StatusOr<Batch> Build(const BatchSlice& slice) const;

  const Sampler& sampler() const { return sampler_; }
  const BatchOptions& options() const { return options_; }
  int64_t vocabulary() const { return sources_.front()->vocabulary(); }

 private:
  BatchBuilder(std::vector<std::shared_ptr<const TokenSource>> sources, Sampler sampler,
               const BatchOptions& options)
      : sources_(std::move(sources)), sampler_(std::move(sampler)), options_(options) {}

  std::vector<std::shared_ptr<const TokenSource>> sources_;
  Sampler sampler_;
  BatchOptions options_;
};

struct ValidationOptions {
  int64_t global_sequences = 0;  // per batch, over all ranks and micro-batches
  int64_t length = 0;            // tokens of a sequence
  int64_t max_batches = 0;       // use only the first max_batches; 0: all
  WindowOptions window;
};

// Validation batches: every window of a held-out source once, in order; the same at every step, for
// any seed and number of ranks.
//
// All batches have the same number of sequences. If the last windows do not fill one, the last
// window is repeated with every target ignored, so that it does not affect the loss and adds
// nothing new to statistics over the batch.
class ValidationSet {
 public:
  // InvalidArgument naming the field or the source, the value and the bound.
  static absl::StatusOr<ValidationSet> Create(std::shared_ptr<const TokenSource> source,
                                              const ValidationOptions& options);

  int64_t batches() const { return batches_; }

  // Part of batch `slice.step` in [0, batches()); the same division as in training.
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

#endif  // NIBBLE_WORKER_TRAINER_DATA_BATCH_BUILDER_H_
