// What one process wrote, on disk in bounded room: the newest `file_bytes` to 2 × `file_bytes`, in
// the file and the one before it (PATH.1). Lines have offsets in the stream as a whole, so that a
// reader goes on where it was, also over a change of files.
//
// Where the file before it begins in the stream is in PATH.begin, for those who read it when the
// process, and its daemon, are long gone.
//
// A disk that cannot take it loses the log, not the process: the error is kept and the tail in
// memory goes on.
//
// Ownership: owns the file. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_RANK_LOG_H_
#define NIBBLE_WORKER_AGENT_RANK_LOG_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

class RankLog {
 public:
  struct Limits {
    int64_t file_bytes = int64_t{16} << 20;  // at least 1
    int64_t tail_bytes = 4096;               // kept in memory, for reports
  };

  // Begins anew where there is one already. `path` ends with JOB/ATTEMPT/FILE. Unavailable where
  // the job's or the attempt's directory is a symbolic link: a log is written and read where it is
  // named, and nowhere else.
  static absl::StatusOr<std::unique_ptr<RankLog>> Create(const std::string& path,
                                                         const Limits& limits);
  // Of a process that has ended, perhaps in an earlier life of the daemon; nothing is written.
  // NotFound where there is none; Unavailable for what is a link, a pipe or a device.
  static absl::StatusOr<std::unique_ptr<RankLog>> OpenEnded(const std::string& path);
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  void Append(absl::string_view bytes);
  // The process has ended: nothing follows.
  void End();

  // The last bytes, from the start of a line where there is one among them.
  std::string Tail() const;
  // Of all that was appended.
  int64_t end() const;
  // Of the first byte that is still kept.
  int64_t begin() const;
  bool ended() const;
  // Until there is something beyond the offset, or the process has ended: true; or for so long.
  bool AwaitBeyond(int64_t offset, std::chrono::milliseconds patience) const;
  // What kept it from being written; OK: nothing.
  absl::Status status() const;

  struct Piece {
    int64_t offset = 0;  // of `bytes`, later than asked for where that is gone
    std::string bytes;   // empty: nothing there yet
  };
  // At most `most` bytes from `offset` on. OutOfRange beyond the end.
  absl::StatusOr<Piece> Read(int64_t offset, int64_t most) const;

 private:
  RankLog(std::string path, const Limits& limits, int directory)
      : path_(std::move(path)), limits_(limits), directory_(directory) {}
  // Of the file in its directory.
  std::string Name(const char* suffix = "") const;
  int64_t ReadBegin() const;
  void WriteBegin() const;
  absl::Status Write(absl::string_view bytes);
  absl::Status Turn();

  const std::string path_;
  const Limits limits_;
  const int directory_;

  mutable std::mutex mutex_;
  mutable std::condition_variable grown_;
  // Guarded by mutex_.
  int file_ = -1;
  int64_t begin_ = 0;         // offset of the file's first byte
  int64_t before_begin_ = 0;  // of that of the file before; begin_: there is none
  int64_t end_ = 0;
  bool ended_ = false;
  std::string tail_;
  absl::Status status_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_RANK_LOG_H_
