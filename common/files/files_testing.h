// For tests: temporary directories, the content of files, and faults of the disk at chosen writes.
//
// Ownership: a TempDirectory owns the directory and everything in it. Thread-safety: a WriteHook's
// methods from any thread; otherwise one thread at a time.
#ifndef NIBBLE_COMMON_FILES_FILES_TESTING_H_
#define NIBBLE_COMMON_FILES_FILES_TESTING_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/config.h"
#include "common/files/files.h"
#include "common/mutex.h"

namespace nibble::file_testing {

// Tests of many damages, failures or steps try only every kOneIn-th under a sanitizer, which makes
// each several times slower; the plain build tries all.
#if defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr int kOneIn = 16;
#elif defined(ABSL_HAVE_ADDRESS_SANITIZER)
inline constexpr int kOneIn = 4;
#else
inline constexpr int kOneIn = 1;
#endif

// A new temporary directory, removed with its content.
class TempDirectory {
 public:
  // kMemory: on tmpfs where this machine has it in /dev/shm, for tests that make and remove
  // thousands of files and sync none: ext4 takes half of their time for finding inodes that were
  // not used recently.
  enum class Place { kDisk, kMemory };
  explicit TempDirectory(Place place = Place::kDisk);
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The content of a file, which must exist.
std::string ContentOf(const std::string& path);

// Calls `before` at every write, one call at a time.
class WriteHook : public DiskFaults {
 public:
  explicit WriteHook(std::function<int(const std::string& path, int64_t bytes)> before)
      : before_(std::move(before)) {}
  int BeforeWrite(const std::string& path, int64_t bytes) override {
    MutexLock lock(&mutex_);
    return before_(path, bytes);
  }
  void AfterSync(const std::string&) override {}

 private:
  Mutex mutex_;
  const std::function<int(const std::string&, int64_t)> before_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::file_testing

#endif  // NIBBLE_COMMON_FILES_FILES_TESTING_H_
