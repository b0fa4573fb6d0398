// Any world size loads what another has saved.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using checkpoint_testing::BytesOf;
using checkpoint_testing::EvenSlices;
using checkpoint_testing::LoadsExactly;
using checkpoint_testing::LoadsRange;
using checkpoint_testing::RandomSlices;
using checkpoint_testing::RandomState;
using checkpoint_testing::State;
using checkpoint_testing::TestHeader;
using checkpoint_testing::TestOptions;
using checkpoint_testing::WriteShard;
using file_testing::TempDirectory;

// Every rank of a world of `world` loads its own part of every tensor.
void ExpectWorldLoads(const CheckpointReader& reader, const State& state, int32_t world) {
  for (int32_t rank = 0; rank < world; ++rank) {
    for (const TensorSlice& slice : EvenSlices(state, rank, world)) {
      std::vector<std::byte> loaded(SliceBytes(slice), std::byte{0xa5});
      ASSERT_EQ(reader.Load(slice.name, slice.first, slice.count, absl::MakeSpan(loaded)),
                absl::OkStatus());
      const auto expected = BytesOf(state, slice);
      ASSERT_TRUE(std::equal(loaded.begin(), loaded.end(), expected.begin(), expected.end()))
          << slice.name << " of rank " << rank << " of " << world;
    }
  }
}

TEST(ReshardTest, ACheckpointOfAnyWorldSizeLoadsInAnyOther) {
  const TempDirectory directory;
  CheckpointStore::Options options = TestOptions();
  options.retention.keep_last = 1;
  int64_t step = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const State state = RandomState(seed, 1 + static_cast<int>(seed % 7), 4000);
    for (const int32_t saved : {1, 2, 4}) {
      // Chunks of odd sizes, and files of few or many chunks.
      options.chunk_bytes = 200 + static_cast<int64_t>(seed) * 333;
      options.file_bytes = static_cast<int64_t>(seed % 3 + 1) * 4000;
      auto store = CheckpointStore::Open(directory.path() + "/store", options);
      ASSERT_TRUE(store.ok()) << store.status();
      ++step;
      std::vector<ShardManifest> shards;
      const auto slices = RandomSlices(state, saved, seed * 10 + saved);
      for (int32_t rank = 0; rank < saved; ++rank) {
        auto shard = WriteShard(**store, step, 1, rank, state, slices[rank]);
        ASSERT_TRUE(shard.ok()) << shard.status();
        shards.push_back(*std::move(shard));
      }
      const auto manifest = MakeManifest(TestHeader(step, 1, saved), std::move(shards));
      ASSERT_TRUE(manifest.ok()) << manifest.status();
      ASSERT_TRUE((*store)->Commit(*manifest).ok());

      const auto reader = (*store)->OpenCheckpoint(step);
      ASSERT_TRUE(reader.ok()) << reader.status();
      EXPECT_EQ((*reader)->manifest(), *manifest);
      EXPECT_EQ(LoadsExactly(**reader, state), absl::OkStatus());
      for (const int32_t loading : {1, 2, 4}) ExpectWorldLoads(**reader, state, loading);
      for (uint64_t i = 0; i < 200; ++i) {
        ASSERT_EQ(LoadsRange(**reader, state, seed * 1000 + i), absl::OkStatus());
      }
    }
  }
}

TEST(CheckpointReaderTest, RangesOutsideATensorAreRefused) {
  const TempDirectory directory;
  auto store = CheckpointStore::Open(directory.path() + "/store", TestOptions());
  ASSERT_TRUE(store.ok()) << store.status();
  const State state = RandomState(1, 6, 2000);
  ASSERT_EQ(checkpoint_testing::Save(**store, 40, 1, 1, state), absl::OkStatus());
  const auto reader = (*store)->OpenCheckpoint(40);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(absl::IsNotFound((*reader)->Load("none", 0, 0, {})));
  const TensorSlice& slice = state[0].whole;
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->Load(slice.name, 0, slice.count + 1, {})));
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->Load(slice.name, -1, 1, {})));
  std::vector<std::byte> small(SliceBytes(slice) + 1);
  EXPECT_TRUE(
      absl::IsInvalidArgument((*reader)->Load(slice.name, 0, slice.count, absl::MakeSpan(small))));
}

}  // namespace
}  // namespace nibble
