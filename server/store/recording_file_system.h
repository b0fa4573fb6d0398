// For tests: a file system that writes down everything done to the files below it, and from that
// makes what a disk can hold if the power fails at any moment.
//
// The recorded history knows, for every file, what was written and when it was synced, and for
// every name, when its directory was. What was not synced may be on the disk after a failure,
// wholly, in part or not at all.
//
// Ownership: shares the recording. Thread-safety: all methods of a Recording but those of DiskImage
// and MakeDisk, which are for afterwards.
#ifndef NIBBLE_SERVER_STORE_RECORDING_FILE_SYSTEM_H_
#define NIBBLE_SERVER_STORE_RECORDING_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace nibble::store_testing {

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
    kNote,             // number: said by the test
  };
  Kind kind;
  std::string path;  // relative to the root of the recording
  std::string to;
  int file = 0;
  uint64_t offset = 0;
  std::string bytes;
  uint64_t number = 0;
};

// The state of a disk after some of the events, grown event by event.
class DiskImage {
 public:
  void Apply(const FileEvent& event);

  using Files = std::map<std::string, std::string>;  // path → content
  // Nothing survives that was not synced.
  Files Synced() const;
  // Names survive, as on a file system that writes its own journal now and then; unsynced bytes
  // do not.
  Files SyncedBytes() const;
  // Of the unsynced names, some survive; of each file's unsynced writes, a prefix, cut anywhere,
  // and logs may have lost sectors in it.
  Files Torn(std::mt19937_64& random) const;
  // As after the end of the process only.
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
  // A directory's entry has file 0.
  using Names = std::map<std::string, int>;
  template <class ContentOf>
  Files Make(const Names& names, ContentOf content_of) const;

  std::map<int, File> files_;
  Names synced_names_;
  Names current_names_;
};

class Recording {
 public:
  // Only what is done below `root` is recorded; syncs are recorded and not done.
  explicit Recording(std::string root);

  std::shared_ptr<rocksdb::FileSystem> FileSystem(std::shared_ptr<Recording> self);
  // That these files were there before, durably; before anything else.
  DiskImage Begin(const DiskImage::Files& files);
  void Note(uint64_t number);
  // To be read when all is done.
  const std::vector<FileEvent>& events() const { return events_; }

  // For the file system.
  void Add(FileEvent event);
  int Create(const std::string& path);
  int FileOf(const std::string& path);
  std::string Relative(const std::string& path) const;

 private:
  const std::string root_;
  std::mutex mutex_;
  // Guarded by mutex_ while things are done.
  std::vector<FileEvent> events_;
  std::map<std::string, int> names_;
  int files_ = 0;
};

// Makes these files, and no others, below `root`.
void MakeDisk(const std::string& root, const DiskImage::Files& files);

// The machine's file system, without waiting for its disk.
std::shared_ptr<rocksdb::FileSystem> UnsyncedFileSystem();

}  // namespace nibble::store_testing

#endif  // NIBBLE_SERVER_STORE_RECORDING_FILE_SYSTEM_H_
