#include "worker/checkpoint/store_testing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_writer.h"

namespace nibble::checkpoint_testing {
namespace {

using Random = std::mt19937_64;

int64_t Below(Random& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

const TestTensor& Find(const State& state, const std::string& name) {
  return *std::find_if(state.begin(), state.end(),
                       [&name](const TestTensor& t) { return t.whole.name == name; });
}

}  // namespace

State RandomState(uint64_t seed, int tensors, int64_t max_elements) {
  Random random(seed);
  State state;
  constexpr FileDType kTypes[] = {FileDType::kF32, FileDType::kBF16, FileDType::kU8,
                                  FileDType::kI64};
  for (int i = 0; i < tensors; ++i) {
    TestTensor tensor;
    tensor.whole.name = absl::StrCat("state/", i, ".weight");
    tensor.whole.dtype = kTypes[random() % 4];
    const int64_t rows = 1 + Below(random, 8);
    switch (random() % 8) {
      case 0:
        tensor.whole.shape = {};
        break;
      case 1:
        tensor.whole.shape = {rows, 0};
        break;
      default:
        tensor.whole.shape = {rows, 1 + Below(random, std::max<int64_t>(1, max_elements / rows))};
    }
    tensor.whole.count = *ShapeElements(tensor.whole.shape);
    tensor.bytes.resize(SliceBytes(tensor.whole));
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
    state.push_back(std::move(tensor));
  }
  return state;
}

std::vector<TensorSlice> EvenSlices(const State& state, int32_t rank, int32_t world) {
  std::vector<TensorSlice> slices;
  for (const TestTensor& tensor : state) {
    TensorSlice slice = tensor.whole;
    slice.first = tensor.whole.count * rank / world;
    slice.count = tensor.whole.count * (rank + 1) / world - slice.first;
    // A rank may leave out what it has nothing of; rank 0 names every tensor.
    if (slice.count > 0 || rank == 0) slices.push_back(std::move(slice));
  }
  return slices;
}

std::vector<std::vector<TensorSlice>> RandomSlices(const State& state, int32_t world,
                                                   uint64_t seed) {
  Random random(seed);
  std::vector<std::vector<TensorSlice>> slices(world);
  for (const TestTensor& tensor : state) {
    int64_t first = 0;
    do {
      TensorSlice slice = tensor.whole;
      slice.first = first;
      const int64_t rest = tensor.whole.count - first;
      slice.count = random() % 3 == 0 ? rest : Below(random, rest + 1);
      first += slice.count;
      slices[random() % world].push_back(std::move(slice));
    } while (first < tensor.whole.count);
  }
  return slices;
}

absl::Span<const std::byte> BytesOf(const State& state, const TensorSlice& slice) {
  const int64_t element = FileDTypeSize(slice.dtype);
  return absl::MakeConstSpan(Find(state, slice.name).bytes)
      .subspan(slice.first * element, slice.count * element);
}

StoreIdentity TestIdentity() { return {"test cluster", "job-7"}; }

CheckpointHeader TestHeader(int64_t step, int64_t attempt, int32_t world) {
  return {.identity = TestIdentity(),
          .step = step,
          .attempt = attempt,
          .data_position = step,
          .seed = 42,
          .formula_version = 1,
          .world = world,
          .time_unix_nanos = 1'700'000'000'000'000'000 + step,
          .recipe_timeline = R"([{"from": 0, "preset": "nvfp4"}])",
          .spec = absl::StrCat("name: job-7\nsteps: ", 100, "\n")};
}

CheckpointStore::Options TestOptions() {
  return {.identity = TestIdentity(),
          .retention = {.keep_last = 100},
          .chunk_bytes = 1 << 10,
          .file_bytes = 5 << 10};
}

absl::StatusOr<ShardManifest> WriteShard(CheckpointStore& store, int64_t step, int64_t attempt,
                                         int32_t rank, const State& state,
                                         const std::vector<TensorSlice>& slices) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> writer, store.Begin(step, attempt, rank));
  for (const TensorSlice& slice : slices) {
    NIBBLE_RETURN_IF_ERROR(writer->Put(slice, BytesOf(state, slice)));
  }
  return writer->Seal();
}

absl::Status Save(CheckpointStore& store, int64_t step, int64_t attempt, int32_t world,
                  const State& state) {
  std::vector<ShardManifest> shards;
  for (int32_t rank = 0; rank < world; ++rank) {
    NIBBLE_ASSIGN_OR_RETURN(ShardManifest shard, WriteShard(store, step, attempt, rank, state,
                                                            EvenSlices(state, rank, world)));
    shards.push_back(std::move(shard));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest,
                          MakeManifest(TestHeader(step, attempt, world), std::move(shards)));
  return store.Commit(manifest).status();
}

absl::Status LoadsExactly(const CheckpointReader& reader, const State& state) {
  if (reader.tensors().size() != state.size()) {
    return absl::InternalError(
        absl::StrCat(reader.tensors().size(), " tensors instead of ", state.size()));
  }
  for (const TestTensor& tensor : state) {
    std::vector<std::byte> loaded(tensor.bytes.size(), std::byte{0xa5});
    NIBBLE_RETURN_IF_ERROR(
        reader.Load(tensor.whole.name, 0, tensor.whole.count, absl::MakeSpan(loaded)));
    if (loaded != tensor.bytes) {
      return absl::InternalError(absl::StrCat("WRONG BYTES in ", tensor.whole.name));
    }
  }
  return absl::OkStatus();
}

absl::Status LoadsRange(const CheckpointReader& reader, const State& state, uint64_t seed) {
  Random random(seed);
  TensorSlice slice = state[random() % state.size()].whole;
  slice.first = Below(random, slice.count + 1);
  slice.count = Below(random, slice.count - slice.first + 1);
  std::vector<std::byte> loaded(SliceBytes(slice), std::byte{0xa5});
  NIBBLE_RETURN_IF_ERROR(reader.Load(slice.name, slice.first, slice.count, absl::MakeSpan(loaded)));
  const absl::Span<const std::byte> expected = BytesOf(state, slice);
  if (!std::equal(loaded.begin(), loaded.end(), expected.begin(), expected.end())) {
    return absl::InternalError(
        absl::StrCat("WRONG BYTES in ", slice.name, " at ", slice.first, " + ", slice.count));
  }
  return absl::OkStatus();
}

}  // namespace nibble::checkpoint_testing
