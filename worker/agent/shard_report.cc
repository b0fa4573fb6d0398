#include "worker/agent/shard_report.h"

#include <cstddef>

#include "common/crc32c.h"
#include "worker/checkpoint/manifest_codec.h"

namespace nibble {
namespace {

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

}  // namespace

std::string ShardManifestBytes(const ShardManifest& shard) {
  ShardManifest tensors = shard;
  tensors.files.clear();
  std::string record = EncodeShard(tensors);
  record.resize(record.size() - sizeof(uint32_t));
  return record;
}

uint32_t ShardManifestCrc(const ShardManifest& shard) { return CrcOf(ShardManifestBytes(shard)); }

absl::StatusOr<ShardManifest> ShardManifestFrom(const std::string& bytes) {
  std::string record = bytes;
  const uint32_t crc = CrcOf(bytes);
  for (size_t i = 0; i < sizeof crc; ++i) record.push_back(static_cast<char>(crc >> (8 * i)));
  return DecodeShard(record);
}

v1::ShardReport ShardReportOf(const std::string& job, const ShardManifest& shard, int32_t world) {
  v1::ShardReport report;
  report.mutable_ref()->set_job(job);
  report.mutable_ref()->set_step(shard.step);
  report.mutable_ref()->set_attempt(shard.attempt);
  report.set_rank(shard.rank);
  report.set_world(world);
  report.set_bytes(shard.bytes());
  report.set_manifest_crc32c(ShardManifestCrc(shard));
  return report;
}

}  // namespace nibble
