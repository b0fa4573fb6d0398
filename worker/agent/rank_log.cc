#include "worker/agent/rank_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Opens the directory of `path`, which ends with JOB/ATTEMPT/FILE, without following symbolic links
// in these.
absl::StatusOr<int> OpenDirectoryOf(const std::string& path) {
  const std::filesystem::path attempt = std::filesystem::path(path).parent_path();
  const std::filesystem::path job = attempt.parent_path();
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  int directory = open(job.parent_path().c_str(), kFlags);
  for (const std::string& name : {job.filename().string(), attempt.filename().string()}) {
    if (directory < 0) break;
    const int inner = openat(directory, name.c_str(), kFlags | O_NOFOLLOW);
    const int error = errno;
    (void)close(directory);
    errno = error;
    directory = inner;
  }
  if (directory >= 0) return directory;
  if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("log: there is no ", path));
  return ErrnoError(errno, "log: opening the directory of", path);
}

// Opens a file that is not a link, pipe or device; errno as set by open().
int OpenRegular(int directory, const std::string& name, int flags) {
  // O_NONBLOCK: a pipe without a writer is refused instead of waited for.
  const int file =
      openat(directory, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0640);
  struct stat found = {};
  if (file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode)) return file;
  if (file < 0 && errno != ELOOP) return file;
  if (file >= 0) (void)close(file);
  errno = EINVAL;
  return -1;
}

// Opens a new file in place of any that has the name.
int OpenNew(int directory, const std::string& name) {
  (void)unlinkat(directory, name.c_str(), 0);
  return OpenRegular(directory, name, O_RDWR | O_CREAT | O_EXCL);
}

absl::Status ReadAt(int file, int64_t at, std::string& out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        pread(file, out.data() + done, out.size() - done, at + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "log: reading");
    if (got == 0)
      return absl::DataLossError("log: the file is shorter than the bytes written to it");
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankLog>> RankLog::Create(const std::string& path,
                                                         const Limits& limits) {
  if (limits.file_bytes < 1 || limits.tail_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("limits: file_bytes ", limits.file_bytes,
                                                   " is below 1 or tail_bytes ", limits.tail_bytes,
                                                   " below 0"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const int directory, OpenDirectoryOf(path));
  std::unique_ptr<RankLog> log(new RankLog(path, limits, directory));
  (void)unlinkat(directory, log->Name(".1").c_str(), 0);
  (void)unlinkat(directory, log->Name(".begin").c_str(), 0);
  const MutexLock file(&log->file_mutex_);
  log->file_ = OpenNew(directory, log->Name());
  if (log->file_ < 0) return ErrnoError(errno, "log: making", path);
  return log;
}

absl::StatusOr<std::unique_ptr<RankLog>> RankLog::OpenEnded(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const int directory, OpenDirectoryOf(path));
  std::unique_ptr<RankLog> log(new RankLog(path, {.file_bytes = 1}, directory));
  const MutexLock file(&log->file_mutex_);
  log->file_ = OpenRegular(directory, log->Name(), O_RDONLY);
  if (log->file_ < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("log: there is no ", path));
    return ErrnoError(errno, "log: opening", path);
  }
  struct stat newest = {};
  if (fstat(log->file_, &newest) != 0) return ErrnoError(errno, "log: reading", path);
  Extent extent;
  struct stat before = {};
  if (fstatat(directory, log->Name(".1").c_str(), &before, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(before.st_mode)) {
    extent.before_begin = log->ReadBegin();
    extent.begin = extent.before_begin + before.st_size;
  }
  extent.end = extent.begin + newest.st_size;
  const MutexLock lock(&log->mutex_);
  log->extent_ = extent;
  log->ended_ = true;
  return log;
}

RankLog::~RankLog() {
  const MutexLock file(&file_mutex_);
  if (file_ >= 0) close(file_);
  close(directory_);
}

std::string RankLog::Name(const char* suffix) const {
  return absl::StrCat(std::filesystem::path(path_).filename().string(), suffix);
}

int64_t RankLog::ReadBegin() const {
  const int file = OpenRegular(directory_, Name(".begin"), O_RDONLY);
  if (file < 0) return 0;
  char text[32] = {};
  const ssize_t got = read(file, text, sizeof text - 1);
  (void)close(file);
  int64_t begin = 0;
  const bool number = got > 0 && absl::SimpleAtoi(text, &begin) && begin >= 0;
  return number ? begin : 0;
}

void RankLog::WriteBegin(int64_t before_begin) const {
  const int file = OpenNew(directory_, Name(".begin"));
  if (file < 0) return;
  const std::string text = absl::StrCat(before_begin, "\n");
  (void)!write(file, text.data(), text.size());
  (void)close(file);
}

absl::Status RankLog::Rotate(Extent& extent) {
  if (renameat(directory_, Name().c_str(), directory_, Name(".1").c_str()) != 0) {
    return ErrnoError(errno, "log: renaming", path_);
  }
  close(file_);
  file_ = OpenNew(directory_, Name());
  const int error = errno;
  extent.before_begin = extent.begin;
  extent.begin = extent.end;
  // If this is lost in a crash or on a full disk, a later reader assumes that nothing was
  // discarded.
  WriteBegin(extent.before_begin);
  return file_ < 0 ? ErrnoError(error, "log: making", path_) : absl::OkStatus();
}

absl::Status RankLog::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    Extent extent = this->extent();
    absl::Status status;
    if (extent.end - extent.begin >= limits_.file_bytes) status = Rotate(extent);
    if (status.ok()) {
      const auto room = static_cast<size_t>(limits_.file_bytes - (extent.end - extent.begin));
      const ssize_t written =
          pwrite(file_, bytes.data(), std::min(room, bytes.size()), extent.end - extent.begin);
      if (written < 0 && errno != EINTR) status = ErrnoError(errno, "log: writing", path_);
      if (written > 0) {
        extent.end += written;
        bytes.remove_prefix(static_cast<size_t>(written));
      }
    }
    const MutexLock lock(&mutex_);
    extent_ = extent;
    status_ = status;
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void RankLog::Append(absl::string_view bytes) {
  const MutexLock file(&file_mutex_);
  absl::Status status;
  {
    const MutexLock lock(&mutex_);
    tail_.append(bytes.data(), bytes.size());
    const auto most = static_cast<size_t>(limits_.tail_bytes);
    if (tail_.size() > most) tail_.erase(0, tail_.size() - most);
    status = status_;
  }
  if (status.ok()) (void)Write(bytes);  // keeps its error
  const MutexLock lock(&mutex_);
  grown_.SignalAll();
}

void RankLog::End() {
  const MutexLock lock(&mutex_);
  ended_ = true;
  grown_.SignalAll();
}

bool RankLog::ended() const {
  const MutexLock lock(&mutex_);
  return ended_;
}

RankLog::Extent RankLog::extent() const {
  const MutexLock lock(&mutex_);
  return extent_;
}

int64_t RankLog::begin() const { return extent().before_begin; }

int64_t RankLog::end() const { return extent().end; }

bool RankLog::AwaitBeyond(int64_t offset, std::chrono::milliseconds patience) const {
  const auto until = std::chrono::steady_clock::now() + patience;
  const MutexLock lock(&mutex_);
  while (!ended_ && extent_.end <= offset && !grown_.WaitUntil(&mutex_, until)) {
  }
  return ended_ || extent_.end > offset;
}

std::string RankLog::Tail() const {
  const MutexLock lock(&mutex_);
  // If nothing was cut off, the first line is complete.
  if (static_cast<int64_t>(tail_.size()) < limits_.tail_bytes) return tail_;
  const size_t line = tail_.find('\n');
  return line == std::string::npos || line + 1 == tail_.size() ? tail_ : tail_.substr(line + 1);
}

absl::Status RankLog::status() const {
  const MutexLock lock(&mutex_);
  return status_;
}

absl::StatusOr<RankLog::Piece> RankLog::Read(int64_t offset, int64_t most) const {
  const MutexLock opened(&file_mutex_);
  const Extent extent = this->extent();
  if (offset < 0 || offset > extent.end || most < 0) {
    return absl::OutOfRangeError(absl::StrCat("offset: ", offset, " is not in [0, ", extent.end,
                                              "], or most: ", most, " is below 0"));
  }
  Piece piece = {.offset = std::max(offset, extent.before_begin)};
  const bool older = piece.offset < extent.begin;
  const int64_t begin = older ? extent.before_begin : extent.begin;
  const int64_t end = older ? extent.begin : extent.end;
  piece.bytes.resize(static_cast<size_t>(std::min(most, end - piece.offset)));
  if (!older) {
    NIBBLE_RETURN_IF_ERROR(ReadAt(file_, piece.offset - begin, piece.bytes));
    return piece;
  }
  const int file = OpenRegular(directory_, Name(".1"), O_RDONLY);
  if (file < 0) return ErrnoError(errno, "log: opening", path_ + ".1");
  absl::Status read = ReadAt(file, piece.offset - begin, piece.bytes);
  close(file);
  if (!read.ok()) return read;
  return piece;
}

}  // namespace nibble
