#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TensorSlice Good() { return {"layers.0.weight", FileDType::kBF16, {4, 8}, 8, 16}; }

std::string Refusal(const TensorSlice& slice) {
  const absl::Status status = CheckSlice(slice);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(TensorSliceTest, BytesAreElementsTimesTheirSize) {
  EXPECT_EQ(CheckSlice(Good()), absl::OkStatus());
  EXPECT_EQ(SliceBytes(Good()), 32);
}

TEST(TensorSliceTest, ScalarHasOneElementAndAZeroDimensionNone) {
  EXPECT_EQ(*ShapeElements({}), 1);
  EXPECT_EQ(*ShapeElements(std::vector<int64_t>{3, 0, int64_t{1} << 40}), 0);
}

TEST(TensorSliceTest, AnInvalidFieldIsRefusedByName) {
  TensorSlice slice = Good();
  slice.name = "";
  EXPECT_THAT(Refusal(slice), HasSubstr("name has 0 characters"));
  slice = Good();
  slice.name = std::string(TensorSlice::kMaxName + 1, 'a');
  EXPECT_THAT(Refusal(slice), HasSubstr("513"));
  slice = Good();
  slice.name = "a\nb";
  EXPECT_THAT(Refusal(slice), HasSubstr("printable"));
  slice = Good();
  slice.dtype = static_cast<FileDType>(99);
  EXPECT_THAT(Refusal(slice), HasSubstr("dtype 99"));
  slice = Good();
  slice.shape = {4, -8};
  EXPECT_THAT(Refusal(slice), HasSubstr("negative"));
  slice = Good();
  slice.shape = std::vector<int64_t>(TensorSlice::kMaxDimensions + 1, 1);
  EXPECT_THAT(Refusal(slice), HasSubstr("17 dimensions"));
}

TEST(TensorSliceTest, SizesThatOverflowAreRefused) {
  TensorSlice slice = Good();
  slice.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(Refusal(slice), HasSubstr("more than"));
  slice.shape = {int64_t{1} << 50};
  EXPECT_THAT(Refusal(slice), HasSubstr("of 2 bytes, more than"));
}

TEST(TensorSliceTest, RangeOutsideTheTensorIsRefused) {
  TensorSlice slice = Good();
  slice.first = 17;
  EXPECT_THAT(Refusal(slice), HasSubstr("[17, 17 + 16) are not inside [0, 32)"));
  slice.first = -1;
  EXPECT_THAT(Refusal(slice), HasSubstr("[-1"));
  slice = Good();
  slice.count = INT64_MAX;
  EXPECT_THAT(Refusal(slice), HasSubstr("not inside"));
}

TEST(TensorSliceTest, TheLastChunkHasTheRemainder) {
  EXPECT_EQ(ChunksOf(0, 10), 0);
  EXPECT_EQ(ChunksOf(10, 10), 1);
  EXPECT_EQ(ChunksOf(11, 10), 2);
}

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
  const absl::StatusOr<Manifest> manifest =
      MakeManifest(Header(2), {Shard(1, {Slice("a", 60, 40)}), Shard(0, {Slice("a", 0, 60)})});
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

TEST(ManifestTest, EveryRankHasExactlyOneShard) {
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

TEST(ManifestTest, TheFieldsOfAShardAreBounded) {
  const auto accepts = [](auto change) {
    ShardManifest shard = Shard(0, {Slice("a", 0, 100)});
    shard.files = {{"CURRENT", 16, 16, 1}};
    change(shard);
    return CheckShard(shard).ok();
  };
  EXPECT_TRUE(accepts([](auto&) {}));
  EXPECT_TRUE(accepts([](auto& shard) { shard.rank = ShardManifest::kMaxRanks - 1; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.rank = ShardManifest::kMaxRanks; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.rank = -1; }));
  EXPECT_TRUE(accepts([](auto& shard) { shard.step = 0; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.step = -1; }));
  EXPECT_TRUE(accepts([](auto& shard) { shard.attempt = 1; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.attempt = 0; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.chunk_bytes = 0; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.files[0].checked_from = 17; }));
  EXPECT_FALSE(accepts([](auto& shard) { shard.files[0].checked_from = -1; }));
  for (const char* const name : {"", ".", "..", "a/b", "/a"}) {
    EXPECT_FALSE(accepts([name](auto& shard) { shard.files[0].name = name; })) << name;
  }
}

TEST(ManifestTest, EveryChunkNeedsAChecksum) {
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

using ::testing::HasSubstr;

StoredSlice Slice(const std::string& name, std::vector<int64_t> shape, int64_t first,
                  int64_t count) {
  StoredSlice stored = {{name, FileDType::kF32, std::move(shape), first, count}, {}};
  stored.chunk_crcs.resize(ChunksOf(SliceBytes(stored.slice), 64), 0xdeadbeef);
  return stored;
}

Manifest SampleManifest() {
  const CheckpointHeader header = {.identity = {"cluster", "job"},
                                   .step = 1000,
                                   .attempt = 3,
                                   .data_position = 1000,
                                   .seed = UINT64_MAX,
                                   .formula_version = 2,
                                   .world = 2,
                                   .time_unix_nanos = -5,
                                   .recipe_timeline = std::string("[\0]", 3),
                                   .spec = "a: b\n"};
  return *MakeManifest(
      header, {{1000,
                3,
                0,
                64,
                {Slice("w", {10, 10}, 0, 60), Slice("scalar", {}, 0, 1)},
                {{"CURRENT", 16, 0, 1}, {"000009.sst", 5000, 904, 2}}},
               {1000, 3, 1, 64, {Slice("w", {10, 10}, 60, 40), Slice("empty", {0}, 0, 0)}, {}}});
}

// Recomputes the record's checksum, as a faulty program would.
std::string WithChecksum(std::string record) {
  record.resize(record.size() - 4);
  AppendLittle(record, Crc32c(record));
  return record;
}

TEST(ManifestCodecTest, DecodingReturnsTheEncodedValue) {
  const Manifest manifest = SampleManifest();
  const absl::StatusOr<Manifest> decoded = DecodeManifest(EncodeManifest(manifest));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  const absl::StatusOr<ShardManifest> shard = DecodeShard(EncodeShard(manifest.shards[1]));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(*shard, manifest.shards[1]);
}

TEST(ManifestCodecTest, OnlyAHeaderWithProductsNeedsTheSecondVersion) {
  Manifest manifest = SampleManifest();
  EXPECT_EQ(EncodeManifest(manifest)[8], 1);
  manifest.header.products = "cublasLt on a card\n";
  const std::string record = EncodeManifest(manifest);
  EXPECT_EQ(record[8], 2);
  const absl::StatusOr<Manifest> decoded = DecodeManifest(record);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  const absl::StatusOr<CheckpointHeader> header = DecodeHeader(EncodeHeader(manifest.header));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(*header, manifest.header);
}

TEST(ManifestCodecTest, EveryFlippedBitIsDetected) {
  const std::string record = EncodeManifest(SampleManifest());
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string damaged = record;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const absl::Status status = DecodeManifest(damaged).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << "bit " << bit << ": " << status;
  }
}

TEST(ManifestCodecTest, EveryTruncationIsDetected) {
  const std::string record = EncodeManifest(SampleManifest());
  for (size_t size = 0; size < record.size(); ++size) {
    ASSERT_TRUE(absl::IsDataLoss(DecodeManifest(record.substr(0, size)).status())) << size;
  }
}

TEST(ManifestCodecTest, NewerVersionIsNamed) {
  std::string record = EncodeManifest(SampleManifest());
  record[8] = 9;
  const absl::Status status = DecodeManifest(WithChecksum(record)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 9"));
}

TEST(ManifestCodecTest, ASealDoesNotDecodeAsAManifestNorAManifestAsASeal) {
  const Manifest manifest = SampleManifest();
  EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(EncodeShard(manifest.shards[0])).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeShard(EncodeManifest(manifest)).status()));
}

// Records of a faulty program: right checksums, arbitrary content. They are refused or valid; they
// are never read beyond their end, and their sizes are never trusted.
TEST(ManifestCodecTest, RandomContentWithAValidChecksumIsRefusedOrValid) {
  const std::string record = EncodeManifest(SampleManifest());
  std::mt19937_64 random(1);
  int refused = 0;
  constexpr int kTries = 100'000;
  for (int i = 0; i < kTries; ++i) {
    std::string damaged = record;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes; ++c) {
      damaged[12 + random() % (damaged.size() - 16)] = static_cast<char>(random());
    }
    const absl::StatusOr<Manifest> decoded = DecodeManifest(WithChecksum(damaged));
    if (decoded.ok()) {
      ASSERT_EQ(CheckManifest(*decoded), absl::OkStatus());
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, kTries / 2);

  const std::string seal = EncodeShard(SampleManifest().shards[0]);
  for (int i = 0; i < kTries; ++i) {
    std::string damaged = seal;
    damaged[20 + random() % (damaged.size() - 24)] = static_cast<char>(random());
    const absl::StatusOr<ShardManifest> decoded = DecodeShard(WithChecksum(damaged));
    if (decoded.ok()) {
      ASSERT_EQ(CheckShard(*decoded), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace nibble
