// The files of a shard's database, known from outside. A database cannot vouch for itself: a cut
// log looks like a shorter one, and a damaged table footer can end the process that reads it. So
// every file that is read when a shard is opened is recorded when the shard is sealed, and held
// against the record before RocksDB sees it.
//
// Of a table only its size and its end are recorded (the footer is there): all other bytes of it
// are in blocks, which have their checksums, and the chunks in them have ours.
//
// Ownership: values. Thread-safety: functions of the disk.
#ifndef NIBBLE_WORKER_CHECKPOINT_SHARD_FILES_H_
#define NIBBLE_WORKER_CHECKPOINT_SHARD_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

// At least RocksDB's footer, 53 bytes.
inline constexpr int64_t kTableEndBytes = 4096;

// Of a closed database, by name. Makes them and their names durable.
absl::StatusOr<std::vector<StoredFile>> DescribeShardFiles(const std::string& directory,
                                                           DiskFaults* faults);

// DataLoss, naming the first file that is missing or is not as it was.
absl::Status CheckShardFiles(const std::string& directory, const std::vector<StoredFile>& files);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SHARD_FILES_H_
