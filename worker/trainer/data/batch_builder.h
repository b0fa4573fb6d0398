// Training batches: a pure function of the seed and of which part of which step is asked for.
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
#include "worker/trainer/data/batch_slice.h"
#include "worker/trainer/data/phased_blend.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

struct BlendedSource {
  std::shared_ptr<const TokenSource> source;
  int64_t weight = 1;  // whole parts: 70, 20, 10 (see blend.h)
};

struct BatchOptions {
  uint64_t seed = 0;
  int64_t global_sequences = 0;  // per step, over all ranks and micro-batches
  int64_t length = 0;            // tokens of a sequence
  WindowOptions window;
};

class BatchBuilder {
 public:
  // InvalidArgument naming the field or the source, the value and the bound: every source has
  // tokens for a sample, and all have one tokenizer and one vocabulary.
  static absl::StatusOr<BatchBuilder> Create(std::vector<BlendedSource> sources,
                                             const BatchOptions& options);

  // Of sources that are blended in phases of a run of `steps` steps: the weights of a phase are
  // those of the sources, in their order. Batches of one phase are those of the above with its
  // weights, whatever the steps are. Errors also as PhasedBlend::Create().
  static absl::StatusOr<BatchBuilder> Create(
      std::vector<std::shared_ptr<const TokenSource>> sources, std::vector<BlendPhase> phases,
      int64_t steps, const BatchOptions& options);

  // The sequences of `slice` (the mapping is in batch_slice.h), in the order of their global
  // indices. Errors: as SliceRange(), MakeBatch() and TokenSource::Read().
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

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BATCH_BUILDER_H_
