// For tests: a batch of random tokens of the shape that a spec asks for.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RANDOM_BATCH_TESTING_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RANDOM_BATCH_TESTING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {

inline absl::StatusOr<Batch> RandomBatch(const JobSpec& spec, uint64_t seed) {
  const TestBatch random(MicroBatch(spec), spec.data.sequence, spec.model.vocab, seed);
  Batch batch = *MakeBatch(MicroBatch(spec), spec.data.sequence);
  batch.tokens = random.tokens;
  batch.targets = random.targets;
  batch.doc_begin = random.doc_begin;
  return batch;
}

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RANDOM_BATCH_TESTING_H_
