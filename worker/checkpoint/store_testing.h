// For tests: job states of random tensors, and helpers that save them to a store and load them.
//
// Ownership: values. Thread-safety: free functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_STORE_TESTING_H_
#define NIBBLE_WORKER_CHECKPOINT_STORE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"

namespace nibble::checkpoint_testing {

struct TestTensor {
  TensorSlice whole;  // [0, elements)
  std::vector<std::byte> bytes;
};
using State = std::vector<TestTensor>;

// Deterministic. Some tensors are scalars or empty.
State RandomState(uint64_t seed, int tensors, int64_t max_elements);

// A rank's part of each tensor, in parts as equal as possible.
std::vector<TensorSlice> EvenSlices(const State& state, int32_t rank, int32_t world);
// Each tensor is cut at random places into pieces for random ranks. [world]
std::vector<std::vector<TensorSlice>> RandomSlices(const State& state, int32_t world,
                                                   uint64_t seed);

// The bytes of a slice.
absl::Span<const std::byte> BytesOf(const State& state, const TensorSlice& slice);

StoreIdentity TestIdentity();
CheckpointHeader TestHeader(int64_t step, int64_t attempt, int32_t world);
CheckpointStore::Options TestOptions();  // small chunks and files

// Begin, Put …, Seal.
absl::StatusOr<ShardManifest> WriteShard(CheckpointStore& store, int64_t step, int64_t attempt,
                                         int32_t rank, const State& state,
                                         const std::vector<TensorSlice>& slices);
// Writes all ranks' even slices into one store, and commits.
absl::Status Save(CheckpointStore& store, int64_t step, int64_t attempt, int32_t world,
                  const State& state);

// Loads every tensor whole. The error of a Load, or Internal if the bytes differ from `state`.
absl::Status LoadsExactly(const CheckpointReader& reader, const State& state);
// As LoadsExactly, for a random range of a random tensor.
absl::Status LoadsRange(const CheckpointReader& reader, const State& state, uint64_t seed);

}  // namespace nibble::checkpoint_testing

#endif  // NIBBLE_WORKER_CHECKPOINT_STORE_TESTING_H_
