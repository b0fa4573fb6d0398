// The output of one process, in bounded space on disk: the newest `file_bytes` to 2 × `file_bytes`,
// in the file and its predecessor (PATH.1). Offsets count from the start of the whole stream, so
// that a reader continues across a rotation.
//
// PATH.begin stores the stream offset at which the predecessor begins, for readers after the
// process and its daemon have ended.
//
// A disk error loses the log, not the process: the error is kept, and the tail in memory stays
// current.
//
// Ownership: owns the file. Thread-safety: all methods from any thread; only Append and Read wait
// for the disk.
#ifndef NIBBLE_WORKER_AGENT_RANK_LOG_H_
#define NIBBLE_WORKER_AGENT_RANK_LOG_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace nibble {

class RankLog {
 public:
  struct Limits {
    int64_t file_bytes = int64_t{16} << 20;  // at least 1
    int64_t tail_bytes = 4096;               // kept in memory, for reports
  };

  // Replaces an existing log. `path` ends with JOB/ATTEMPT/FILE. FailedPrecondition if the job's or
  // the attempt's directory is a symbolic link, so that a log never leads outside of its directory.
  static absl::StatusOr<std::unique_ptr<RankLog>> Create(const std::string& path,
                                                         const Limits& limits);
  // Opens the log of a process that has ended, perhaps in an earlier life of the daemon, for
  // reading. NotFound if there is none; InvalidArgument if it is a link, a pipe or a device.
  static absl::StatusOr<std::unique_ptr<RankLog>> OpenEnded(const std::string& path);
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  void Append(absl::string_view bytes);
  // The process has ended: nothing more is appended.
  void End();

  // The last bytes, from the first line start among them.
  std::string Tail() const;
  // The offset after the last byte appended.
  int64_t end() const;
  // The offset of the first byte that is still kept.
  int64_t begin() const;
  bool ended() const;
  // Waits, at most for `patience`, until there are bytes beyond the offset or the process has
  // ended; whether it is so.
  bool AwaitBeyond(int64_t offset, std::chrono::milliseconds patience) const;
  // The error that stopped writing; OK: none.
  absl::Status status() const;

  struct Piece {
    int64_t offset = 0;  // of `bytes`; later than requested if those bytes were discarded
    std::string bytes;   // empty: nothing yet
  };
  // At most `most` bytes from `offset` on. OutOfRange beyond the end.
  absl::StatusOr<Piece> Read(int64_t offset, int64_t most) const;

 private:
  RankLog(std::string path, const Limits& limits, int directory)
      : path_(std::move(path)), limits_(limits), directory_(directory) {}
  // The file's name in its directory.
  std::string Name(const char* suffix = "") const;
  // Offsets in the stream.
  struct Extent {
    int64_t before_begin = 0;  // of the predecessor's first byte; begin: there is none
    int64_t begin = 0;         // of the file's first byte
    int64_t end = 0;
  };

  int64_t ReadBegin() const;
  void WriteBegin(int64_t before_begin) const;
  absl::Status Write(absl::string_view bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  // Makes the file the predecessor, and a new one in its place.
  absl::Status Rotate(Extent& extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_);
  Extent extent() const;

  const std::string path_;
  const Limits limits_;
  const int directory_;

  // Orders the reads and writes of the files. Held during I/O.
  mutable Mutex file_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  int file_ ABSL_GUARDED_BY(file_mutex_) = -1;

  // Never held during I/O.
  mutable Mutex mutex_;
  mutable CondVar grown_;
  Extent extent_ ABSL_GUARDED_BY(mutex_);  // changed only with file_mutex_ held
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::string tail_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_RANK_LOG_H_
