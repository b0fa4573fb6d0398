// A shard as peers and the coordinator know it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_SHARD_REPORT_H_
#define NIBBLE_WORKER_AGENT_SHARD_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

// The bytes of a shard's manifest, and their CRC-32C. The files that hold the shard are not in it:
// a copy in another store has other files and the same manifest. Nor is the record's own checksum:
// of bytes that end with their CRC-32C the CRC-32C is always the same.
std::string ShardManifestBytes(const ShardManifest& shard);
uint32_t ShardManifestCrc(const ShardManifest& shard);
// DataLoss for what is none.
absl::StatusOr<ShardManifest> ShardManifestFrom(const std::string& bytes);

v1::ShardReport ShardReportOf(const std::string& job, const ShardManifest& shard, int32_t world);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SHARD_REPORT_H_
