#include "worker/checkpoint/manifest_codec.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

StoredSlice Slice(const std::string& name, std::vector<int64_t> shape, int64_t first,
                  int64_t count) {
  StoredSlice stored = {{name, FileDType::kF32, std::move(shape), first, count}, {}};
  stored.chunk_crcs.resize(ChunksOf(SliceBytes(stored.slice), 64), 0xdeadbeef);
  return stored;
}

Manifest Sample() {
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
      header, {{1000, 3, 0, 64, {Slice("w", {10, 10}, 0, 60), Slice("scalar", {}, 0, 1)},
                {{"CURRENT", 16, 0, 1}, {"000009.sst", 5000, 904, 2}}},
               {1000, 3, 1, 64, {Slice("w", {10, 10}, 60, 40), Slice("empty", {0}, 0, 0)}, {}}});
}

// Makes the record's own checksum right again, as a careless program would.
std::string WithChecksum(std::string record) {
  record.resize(record.size() - 4);
  const uint32_t crc =
      Crc32c({reinterpret_cast<const std::byte*>(record.data()), record.size()});
  for (int i = 0; i < 4; ++i) record.push_back(static_cast<char>(crc >> (8 * i)));
  return record;
}

TEST(ManifestCodecTest, ComesBackAsItWas) {
  const Manifest manifest = Sample();
  const absl::StatusOr<Manifest> decoded = DecodeManifest(EncodeManifest(manifest));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  const absl::StatusOr<ShardManifest> shard = DecodeShard(EncodeShard(manifest.shards[1]));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(*shard, manifest.shards[1]);
}

TEST(ManifestCodecTest, EveryFlippedBitIsFound) {
  const std::string record = EncodeManifest(Sample());
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string damaged = record;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const absl::Status status = DecodeManifest(damaged).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << "bit " << bit << ": " << status;
  }
}

TEST(ManifestCodecTest, EveryTruncationIsFound) {
  const std::string record = EncodeManifest(Sample());
  for (size_t size = 0; size < record.size(); ++size) {
    ASSERT_TRUE(absl::IsDataLoss(DecodeManifest(record.substr(0, size)).status())) << size;
  }
}

TEST(ManifestCodecTest, NewerVersionIsNamed) {
  std::string record = EncodeManifest(Sample());
  record[8] = 9;
  const absl::Status status = DecodeManifest(WithChecksum(record)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 9"));
}

TEST(ManifestCodecTest, SealIsNoManifestAndManifestNoSeal) {
  const Manifest manifest = Sample();
  EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(EncodeShard(manifest.shards[0])).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeShard(EncodeManifest(manifest)).status()));
}

// What a wrong program could write: the checksums are right and the content is anything. It is
// refused or valid; it is never read beyond its end, and never believed about its sizes.
TEST(ManifestCodecTest, RightChecksumOverWrongContentIsRefusedOrValid) {
  const std::string record = EncodeManifest(Sample());
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

  const std::string seal = EncodeShard(Sample().shards[0]);
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
