// The files of a store's directory. Names distinguish checkpoints from leftovers:
//
//   STORE                                         StoreFile: identity, fence, pinned steps
//   LOCK                                          FileLock: one process at a time may write
//   step-000000000040-attempt-0002-00000007/      a checkpoint: got this name when it was committed
//     MANIFEST                                    its manifest; written last
//     shard-00000/                                a RocksDB for each rank's shard that is here
//     shard-00000.seal                            the shard's manifest
//   writing-000000000050-attempt-0002-00000008/   not (yet) a checkpoint
//   deleted-000000000030-attempt-0001-00000006/   no longer a checkpoint
//
// The last number, the serial, increases with every checkpoint begun in the store. It orders them
// in time, also after a roll back to an earlier step.
//
// STORE is text, replaced atomically, and ends with a checksum of the text before it.
//
// Ownership: values. Thread-safety: values, functions of the path and the disk.
#ifndef NIBBLE_WORKER_CHECKPOINT_STORE_LAYOUT_H_
#define NIBBLE_WORKER_CHECKPOINT_STORE_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/files/file_lock.h"
#include "worker/checkpoint/manifest.h"

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

// The checkpoint directories of a store, at any stage, by serial; other names are ignored.
absl::StatusOr<std::vector<StoredDirectory>> ScanStore(const std::string& path);
// Ranks whose shards are in a checkpoint's directory, ascending.
absl::StatusOr<std::vector<int32_t>> ScanShards(const std::string& path);

inline constexpr int64_t kStoreVersion = 1;

struct StoreFile {
  StoreIdentity identity;
  // The highest attempt recorded: checkpoints of a lower one are not committed.
  int64_t attempt = 0;
  std::set<int64_t> pinned;  // steps

  friend bool operator==(const StoreFile&, const StoreFile&) = default;
};

// The identity is valid.
std::string EncodeStoreFile(const StoreFile& file);

// DataLoss for a damaged file, FailedPrecondition for one of a newer version.
absl::StatusOr<StoreFile> DecodeStoreFile(absl::string_view bytes);

// The content of STORE, MANIFEST or a seal. NotFound if there is no such file; DataLoss if it is
// not a regular file or longer than any record.
absl::StatusOr<std::string> ReadRecord(const std::string& path);

// Locks a store for writing. Unavailable, naming the process, if it is locked already.
absl::StatusOr<std::shared_ptr<const FileLock>> LockStore(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_STORE_LAYOUT_H_
