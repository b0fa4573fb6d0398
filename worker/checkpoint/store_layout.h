// The names in a store's directory, which say what is a checkpoint and what is not:
//
//   STORE, LOCK                                   see store_file.h, store_lock.h
//   step-000000000040-attempt-0002-00000007/      a checkpoint: renamed to this when it was committed
//     MANIFEST                                    what is in it; written last
//     shard-00000/                                a RocksDB for each rank's shard that is here
//     shard-00000.seal                            what is in that
//   writing-000000000050-attempt-0002-00000008/   not (yet) a checkpoint
//   deleted-000000000030-attempt-0001-00000006/   no longer a checkpoint
//
// The last number, the serial, grows with every checkpoint that is begun in the store: it orders
// them in time, also after a roll back to an earlier step.
//
// Ownership: values. Thread-safety: functions of the path and the disk.
#ifndef NIBBLE_WORKER_CHECKPOINT_STORE_LAYOUT_H_
#define NIBBLE_WORKER_CHECKPOINT_STORE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

inline constexpr absl::string_view kStoreFileName = "STORE";
inline constexpr absl::string_view kLockFileName = "LOCK";
inline constexpr absl::string_view kManifestFileName = "MANIFEST";

enum class Stage { kWriting, kCommitted, kDeleted };

struct StoredDirectory {
  Stage stage = Stage::kWriting;
  int64_t step = 0;
  int64_t attempt = 0;
  int64_t serial = 0;

  friend bool operator==(const StoredDirectory&, const StoredDirectory&) = default;
};

std::string DirectoryName(const StoredDirectory& directory);
// nullopt for any name that DirectoryName does not give.
std::optional<StoredDirectory> ParseDirectoryName(absl::string_view name);

std::string ShardDirectoryName(int32_t rank);
std::string SealFileName(int32_t rank);
std::optional<int32_t> ParseShardDirectoryName(absl::string_view name);

// Everything of ours in a store's directory, by serial; other names are passed over.
absl::StatusOr<std::vector<StoredDirectory>> ScanStore(const std::string& path);
// Ranks whose shards are in a checkpoint's directory, ascending.
absl::StatusOr<std::vector<int32_t>> ScanShards(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_STORE_LAYOUT_H_
