// The directory of a store and its small files, apart from RocksDB's own: STORE (cluster and format
// version), ACKNOWLEDGED (the last durable batch), RESERVE (room on the disk), and a watch that
// notices when the directory is removed or replaced. docs/formats/coordinator-store.md specifies
// the bytes.
//
// Files are read and written through the file system that the database uses, so that tests can
// record, lose and fail every write; the watch and RESERVE use system calls.
//
// Ownership: file systems are borrowed; each class owns the descriptors or files that it opened.
// Thread-safety: free functions are independent for different paths; StorePlace is immutable;
// AcknowledgedMark is used by one thread at a time.
#ifndef NIBBLE_SERVER_STORE_STORE_DIRECTORY_H_
#define NIBBLE_SERVER_STORE_STORE_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class FileSystem;
class FSRandomRWFile;
}  // namespace rocksdb

namespace nibble {

// Names in the directory.
inline constexpr char kStoreDbName[] = "db";  // RocksDB's directory
inline constexpr char kStoreMarkerName[] = "STORE";
inline constexpr char kStoreLockName[] = "LOCK";  // FileLock: one process at a time
inline constexpr char kMarkName[] = "ACKNOWLEDGED";
inline constexpr char kReserveName[] = "RESERVE";

namespace store_files {

// Bound on the size of a file that is read into memory; a larger one is DataLoss.
inline constexpr size_t kMaxWholeFileBytes = size_t{1} << 20;

// The content of a file. NotFound where there is none.
absl::StatusOr<std::string> Read(rocksdb::FileSystem& fs, const std::string& path);

// Replaces the content of a file atomically; durable on return. Writes `path`.tmp first and renames
// it.
absl::Status Replace(rocksdb::FileSystem& fs, const std::string& directory, const std::string& name,
                     absl::string_view content);

// Makes the content of a file durable.
absl::Status SyncFile(rocksdb::FileSystem& fs, const std::string& path);

// Makes the names in a directory durable.
absl::Status SyncDirectory(rocksdb::FileSystem& fs, const std::string& path);

// Creates a directory unless it exists; it and its name in its parent are durable on return.
absl::Status CreateDirectory(rocksdb::FileSystem& fs, const std::string& path);

// The names in a directory, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> List(rocksdb::FileSystem& fs, const std::string& path);

// Bytes that can still be written to the disk of a directory.
absl::StatusOr<uint64_t> FreeBytes(rocksdb::FileSystem& fs, const std::string& path);

}  // namespace store_files

// RESERVE: room on the disk that a store keeps, and gives back to be opened when the disk is full.
namespace store_reserve {

// Allocates `bytes` for the file, unless it has them already or as much would not stay free beside
// them. Returns whether it has them.
absl::StatusOr<bool> Keep(rocksdb::FileSystem& fs, const std::string& directory, uint64_t bytes);

// Removes the file. Returns whether there was one.
absl::StatusOr<bool> Release(const std::string& directory);

}  // namespace store_reserve

// The content of STORE, which marks a directory as a coordinator's store.
std::string EncodeStoreMarker(absl::string_view cluster);

// The cluster's name. FailedPrecondition, naming both versions, for a newer format version;
// DataLoss for anything that is no marker. `path` is for the messages.
absl::StatusOr<std::string> ParseStoreMarker(absl::string_view content, absl::string_view path);

// FailedPrecondition, naming both clusters, unless `stored` is `wanted`.
absl::Status CheckSameCluster(absl::string_view path, absl::string_view stored,
                              absl::string_view wanted);

// Notices when the directory of an open store is removed or replaced. The process's open files do
// not notice: its writes and syncs keep succeeding, into files that no later process finds.
class StorePlace {
 public:
  // Watches the directory of an open store and each of `names` in it, none of which is ever
  // replaced while the store is open.
  static absl::StatusOr<std::unique_ptr<StorePlace>> Watch(const std::string& directory,
                                                           const std::vector<std::string>& names);
  ~StorePlace();
  StorePlace(const StorePlace&) = delete;
  StorePlace& operator=(const StorePlace&) = delete;

  // NotFound, naming the directory and the entry that is gone or is now another file under the same
  // name. An entry that cannot be examined because the disk reports an error does not count as
  // gone.
  absl::Status Check() const;

 private:
  explicit StorePlace(std::string directory) : directory_(std::move(directory)) {}

  const std::string directory_;
  std::vector<std::pair<std::string, int>> watched_;  // path, descriptor
};

// The NotFound of StorePlace::Check: `path` of the store in `directory` is gone.
absl::Status StoreGone(const std::string& directory, const std::string& path,
                       const std::string& how);

// AcknowledgedMark::Advance syncs its file once in this many calls.
inline constexpr int kMarksPerSync = 64;

// The file ACKNOWLEDGED: the highest sequence number known to be durable, kept apart from the
// database. It tells a database that lost acknowledged batches from one whose last, unacknowledged
// write was cut by a power failure; RocksDB's log ends the same way in both cases.
//
// The mark is written after every synced write, before any of its batches is acknowledged, and
// synced only once in kMarksPerSync writes: it is exact after the process dies, and at most
// kMarksPerSync - 1 writes behind, never ahead, after a power failure.
//
// The file has two slots, of which one is being written and the other, older one is durable. So one
// of them is intact after any crash, and either may be damaged later.
class AcknowledgedMark {
 public:
  // Creates the file in `directory`, durably.
  static absl::Status Create(rocksdb::FileSystem& fs, const std::string& directory,
                             uint64_t sequence);
  // The number in the file. NotFound where there is no file; DataLoss where both slots are damaged.
  static absl::StatusOr<uint64_t> Read(rocksdb::FileSystem& fs, const std::string& directory);
  // Opens the file for writing and sets it to `sequence`, which is at least its number; durable on
  // return.
  static absl::StatusOr<std::unique_ptr<AcknowledgedMark>> Open(rocksdb::FileSystem& fs,
                                                                const std::string& directory,
                                                                uint64_t sequence);
  ~AcknowledgedMark();
  AcknowledgedMark(const AcknowledgedMark&) = delete;
  AcknowledgedMark& operator=(const AcknowledgedMark&) = delete;

  // Visible at once to readers of the file; durable after the next sync.
  absl::Status Advance(uint64_t sequence);
  // Writes `sequence` to both slots, durably.
  absl::Status Finish(uint64_t sequence);

 private:
  AcknowledgedMark(std::unique_ptr<rocksdb::FSRandomRWFile> file, std::string path, int slot);
  absl::Status WriteSlot(uint64_t sequence);
  absl::Status SyncAndSwitch();

  const std::unique_ptr<rocksdb::FSRandomRWFile> file_;
  const std::string path_;
  int slot_;  // the one being written
  int unsynced_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_DIRECTORY_H_
