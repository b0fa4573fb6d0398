// For tests: a file system that records every operation on the files below it, and computes from
// the recording what a disk can contain if the power fails at any moment.
//
// The recording knows for every file what was written and when it was synced, and for every name
// when its directory was synced. After a power failure, unsynced data may be on the disk wholly, in
// part or not at all.
//
// Ownership: a file system shares its recording. Thread-safety: all methods of a Recording, except
// that events() is read when recording is over; a DiskImage is used by one thread at a time.
#ifndef NIBBLE_SERVER_STORE_DISK_TESTING_H_
#define NIBBLE_SERVER_STORE_DISK_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/files/power_testing.h"
#include "common/mutex.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace nibble::store_testing {

// For stores that are opened thousands of times: it syncs nothing, allocates nothing in advance
// (4 MB for each manifest), and refuses RocksDB's file of options, which only people read and which
// takes half of the time of an opening.
std::shared_ptr<rocksdb::FileSystem> QuickFileSystem();

struct FileEvent {
  enum class Kind {
    kCreateFile,       // path → a new, empty file
    kCreateDirectory,  // path
    kWrite,            // file: bytes at offset
    kTruncate,         // file: to offset
    kSyncFile,         // file
    kSyncDirectory,    // path: the names in it
    kRename,           // path → to
    kLink,             // path → to
    kDelete,           // path
    kNote,             // number: given by the test
  };
  Kind kind;
  std::string path;  // relative to the root of the recording
  std::string to;
  int file = 0;
  uint64_t offset = 0;
  std::string bytes;
  uint64_t number = 0;
};

// The state of a disk after some of the events, which are applied one by one.
class DiskImage {
 public:
  void Apply(const FileEvent& event);

  using Files = file_testing::DiskFiles;
  // Only synced names and bytes survive.
  Files Synced() const;
  // All names survive, as on a file system that has just written its journal; unsynced bytes do
  // not.
  Files SyncedBytes() const;
  // Some unsynced names survive, and of each file's unsynced writes a prefix that ends anywhere; in
  // logs, sectors of that prefix may be lost.
  Files Torn(std::mt19937_64& random) const;
  // Everything survives, as when only the process ends.
  Files Current() const;

 private:
  friend class Recording;
  struct Write {
    uint64_t offset;
    std::string bytes;  // empty: truncation
  };
  struct File {
    std::string synced;
    std::string current;
    std::vector<Write> unsynced;
  };
  // Maps a path to a file's number; 0 for directories.
  using Names = std::map<std::string, int>;
  template <class ContentOf>
  Files Make(const Names& names, ContentOf content_of) const;

  std::map<int, File> files_;
  Names synced_names_;
  Names current_names_;
};

class Recording {
 public:
  // Records operations below `root`. Syncs are recorded but not performed.
  explicit Recording(std::string root);

  std::shared_ptr<rocksdb::FileSystem> FileSystem(std::shared_ptr<Recording> self);
  // Records that these files existed durably at the start; called before anything else.
  DiskImage Begin(const DiskImage::Files& files);
  void Note(uint64_t number);
  // Call it when no more operations are recorded.
  const std::vector<FileEvent>& events() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return events_; }

  // For the file system.
  void Add(FileEvent event);
  int Create(const std::string& path);
  int FileOf(const std::string& path);
  std::string Relative(const std::string& path) const;

 private:
  const std::string root_;
  Mutex mutex_;
  std::vector<FileEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> names_ ABSL_GUARDED_BY(mutex_);
  int files_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nibble::store_testing

#endif  // NIBBLE_SERVER_STORE_DISK_TESTING_H_
