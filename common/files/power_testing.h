// For tests: what a disk can contain if the power fails after any operation of a writer that
// reports to DiskFaults.
//
// The content of a file survives as it was at the file's last sync, and is empty before the first.
// The names in a directory survive as they were at the directory's last sync or as they are now,
// since file systems write names at a time of their choosing: in all directories the one or the
// other, or down to some depth the one and below it the other.
//
// Ownership: PowerCuts has a descriptor of every file and directory that it saw, so that no inode
// number is used twice. Thread-safety: all methods; no other thread renames files during a call.
#ifndef NIBBLE_COMMON_FILES_POWER_TESTING_H_
#define NIBBLE_COMMON_FILES_POWER_TESTING_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/files/files.h"
#include "common/mutex.h"

namespace nibble::file_testing {

// Path below the root → content. Directories end with '/' and have none.
using DiskFiles = std::map<std::string, std::string>;

// Replaces everything below `root` by these files.
void MakeDisk(const std::string& root, const DiskFiles& files);

class PowerCuts : public DiskFaults {
 public:
  // Observes the tree below `root`, which exists; what it contains is durable.
  explicit PowerCuts(const std::string& root);
  ~PowerCuts() override;
  PowerCuts(const PowerCuts&) = delete;
  PowerCuts& operator=(const PowerCuts&) = delete;

  // The test's record of what was acknowledged: what survives from now on belongs to this number.
  void Note(int64_t number);

  // Makes each different state that a power failure could have left below `disk`, and calls `check`
  // with the number noted before it. Stops at the first fatal failure. Returns the number of
  // states.
  int64_t ForEach(const std::string& disk, const std::function<void(int64_t noted)>& check);

  // "write", "sync", "rename" or "sync directory", and the name below the root, in order; of equal
  // ones in sequence only the first.
  std::vector<std::string> operations();

  int BeforeWrite(const std::string& path, int64_t bytes) override;
  void AfterSync(const std::string& path) override;
  void AfterRename(const std::string& from, const std::string& to) override;
  void AfterSyncDirectory(const std::string& path) override;

 private:
  struct Node {
    int descriptor;  // O_PATH
    bool is_directory;
    std::string content;                 // of a file, when it was last synced
    std::map<std::string, ino_t> names;  // in a directory, when it was last synced
  };

  // The inode of `path`, which becomes known; 0 if there is none.
  ino_t Know(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<std::string, ino_t> NamesNow(const Node& directory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records everything that is there as durable.
  void Settle(ino_t inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In directories less than `turn` levels below this one the synced names survive, in the others
  // the current ones; the other way round if `current`.
  void Collect(ino_t inode, const std::string& prefix, int turn, bool current, DiskFiles& files)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps what would survive now.
  void Look(const std::string& after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(absl::string_view what, absl::string_view path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string root_;
  Mutex mutex_;
  std::map<ino_t, Node> nodes_ ABSL_GUARDED_BY(mutex_);
  ino_t root_inode_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t noted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> operations_ ABSL_GUARDED_BY(mutex_);
  // What survived, and the operation after which it did first, by the number noted before.
  std::map<int64_t, std::map<DiskFiles, std::string>> cuts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::file_testing

#endif  // NIBBLE_COMMON_FILES_POWER_TESTING_H_
