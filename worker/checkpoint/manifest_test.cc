#include "worker/checkpoint/manifest.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

StoredSlice Slice(const std::string& name, int64_t first, int64_t count) {
  StoredSlice stored = {{name, FileDType::kF32, {100}, first, count}, {}};
  stored.chunk_crcs.resize(ChunksOf(SliceBytes(stored.slice), 64));
  return stored;
}

ShardManifest Shard(int32_t rank, std::vector<StoredSlice> slices) {
  return {.step = 7, .attempt = 2, .rank = rank, .chunk_bytes = 64, .slices = std::move(slices)};
}

CheckpointHeader Header(int32_t world) {
  return {.identity = {"", "job"}, .step = 7, .attempt = 2, .world = world};
}

std::string Refusal(CheckpointHeader header, std::vector<ShardManifest> shards) {
  const absl::Status status = MakeManifest(std::move(header), std::move(shards)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(ManifestTest, ShardsMayComeInAnyOrder) {
  const absl::StatusOr<Manifest> manifest = MakeManifest(
      Header(2), {Shard(1, {Slice("a", 60, 40)}), Shard(0, {Slice("a", 0, 60)})});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->shards[0].rank, 0);
  EXPECT_EQ(manifest->bytes(), 400);
  const auto tensors = IndexTensors(manifest->shards);
  ASSERT_TRUE(tensors.ok());
  const TensorEntry& entry = tensors->at("a");
  ASSERT_EQ(entry.pieces.size(), 2u);
  EXPECT_EQ(entry.pieces[1].rank, 1);
  EXPECT_EQ(entry.pieces[1].first, 60);
}

TEST(ManifestTest, GapInATensorIsRefused) {
  EXPECT_THAT(Refusal(Header(2), {Shard(0, {Slice("a", 0, 50)}), Shard(1, {Slice("a", 60, 40)})}),
              HasSubstr("tensor \"a\": element 50 is in no slice"));
  EXPECT_THAT(Refusal(Header(1), {Shard(0, {Slice("a", 0, 99)})}),
              HasSubstr("element 99 of 100 is in no slice"));
}

TEST(ManifestTest, OverlapInATensorIsRefused) {
  EXPECT_THAT(Refusal(Header(2), {Shard(0, {Slice("a", 0, 60)}), Shard(1, {Slice("a", 50, 50)})}),
              HasSubstr("element 50 is in two slices"));
}

TEST(ManifestTest, SlicesThatDisagreeAboutTheirTensorAreRefused) {
  StoredSlice other = Slice("a", 60, 40);
  other.slice.shape = {10, 10};
  EXPECT_THAT(Refusal(Header(2), {Shard(0, {Slice("a", 0, 60)}), Shard(1, {other})}),
              HasSubstr("[10, 10]"));
}

TEST(ManifestTest, EveryRankIsThereOnce) {
  EXPECT_THAT(Refusal(Header(2), {Shard(0, {Slice("a", 0, 100)})}), HasSubstr("1 shards"));
  EXPECT_THAT(Refusal(Header(2), {Shard(0, {Slice("a", 0, 100)}), Shard(0, {})}),
              HasSubstr("is of rank 0"));
}

TEST(ManifestTest, ShardOfAnotherStepOrAttemptIsRefused) {
  ShardManifest stale = Shard(0, {Slice("a", 0, 100)});
  stale.attempt = 1;
  EXPECT_THAT(Refusal(Header(1), {stale}), HasSubstr("attempt 1"));
  ShardManifest late = Shard(0, {Slice("a", 0, 100)});
  late.step = 6;
  EXPECT_THAT(Refusal(Header(1), {late}), HasSubstr("step 6"));
}

TEST(ManifestTest, ChecksumPerChunkIsNeeded) {
  ShardManifest shard = Shard(0, {Slice("a", 0, 100)});
  shard.slices[0].chunk_crcs.pop_back();
  EXPECT_THAT(Refusal(Header(1), {shard}), HasSubstr("6 checksums for 7 chunks"));
}

TEST(ManifestTest, IdentityNeedsAJobWithoutControlCharacters) {
  CheckpointHeader header = Header(1);
  header.identity.job = "";
  EXPECT_THAT(Refusal(header, {Shard(0, {})}), HasSubstr("job is empty"));
  header.identity.job = "a\nb";
  EXPECT_THAT(Refusal(header, {Shard(0, {})}), HasSubstr("a\\nb"));
}

}  // namespace
}  // namespace nibble
