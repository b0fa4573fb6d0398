#include "worker/agent/rank_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

absl::Status DiskError(const char* doing, const std::string& path, int error) {
  const std::string text = absl::StrCat("log: ", doing, " ", path, ": ", std::strerror(error));
  const bool full = error == ENOSPC || error == EDQUOT;
  return full ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

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
  return DiskError("opening the directory of", path, errno);
}

// Opens a file that is not a link, pipe or device; errno as set by open().
int OpenRegular(int directory, const std::string& name, int flags) {
  // O_NONBLOCK: a pipe without a writer is refused instead of waited for.
  const int file =
      openat(directory, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0640);
  struct stat found = {};
  if (file < 0 || (fstat(file, &found) == 0 && S_ISREG(found.st_mode))) return file;
  (void)close(file);
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
    if (got < 0) return absl::UnavailableError(absl::StrCat("log: ", std::strerror(errno)));
    if (got == 0) return absl::DataLossError("log: shorter than what was written to it");
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
  log->file_ = OpenNew(directory, log->Name());
  if (log->file_ < 0) return DiskError("making", path, errno);
  return log;
}

absl::StatusOr<std::unique_ptr<RankLog>> RankLog::OpenEnded(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const int directory, OpenDirectoryOf(path));
  std::unique_ptr<RankLog> log(new RankLog(path, {.file_bytes = 1}, directory));
  log->file_ = OpenRegular(directory, log->Name(), O_RDONLY);
  if (log->file_ < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("log: there is no ", path));
    return DiskError("opening", path, errno);
  }
  struct stat newest = {};
  if (fstat(log->file_, &newest) != 0) return DiskError("reading", path, errno);
  struct stat before = {};
  if (fstatat(directory, log->Name(".1").c_str(), &before, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(before.st_mode)) {
    log->before_begin_ = log->ReadBegin();
    log->begin_ = log->before_begin_ + before.st_size;
  }
  log->end_ = log->begin_ + newest.st_size;
  log->ended_ = true;
  return log;
}

RankLog::~RankLog() {
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

void RankLog::WriteBegin() const {
  const int file = OpenNew(directory_, Name(".begin"));
  if (file < 0) return;
  const std::string text = absl::StrCat(before_begin_, "\n");
  (void)!write(file, text.data(), text.size());
  (void)close(file);
}

absl::Status RankLog::Turn() {
  if (renameat(directory_, Name().c_str(), directory_, Name(".1").c_str()) != 0) {
    return DiskError("turning", path_, errno);
  }
  close(file_);
  file_ = OpenNew(directory_, Name());
  before_begin_ = begin_;
  begin_ = end_;
  // If this is lost in a crash or on a full disk, a later reader assumes that nothing was
  // discarded.
  WriteBegin();
  return file_ < 0 ? DiskError("making", path_, errno) : absl::OkStatus();
}

absl::Status RankLog::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    if (end_ - begin_ >= limits_.file_bytes) {
      NIBBLE_RETURN_IF_ERROR(Turn());
    }
    const auto room = static_cast<size_t>(limits_.file_bytes - (end_ - begin_));
    const ssize_t written =
        pwrite(file_, bytes.data(), std::min(room, bytes.size()), end_ - begin_);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return DiskError("writing", path_, errno);
    end_ += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

void RankLog::Append(absl::string_view bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tail_.append(bytes.data(), bytes.size());
  const auto most = static_cast<size_t>(limits_.tail_bytes);
  if (tail_.size() > most) tail_.erase(0, tail_.size() - most);
  if (status_.ok()) status_ = Write(bytes);
  grown_.notify_all();
}

void RankLog::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  grown_.notify_all();
}

bool RankLog::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

int64_t RankLog::begin() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return before_begin_;
}

bool RankLog::AwaitBeyond(int64_t offset, std::chrono::milliseconds patience) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return grown_.wait_for(lock, patience, [&] { return ended_ || end_ > offset; });
}

std::string RankLog::Tail() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  // If nothing was cut off, the first line is complete.
  if (static_cast<int64_t>(tail_.size()) < limits_.tail_bytes) return tail_;
  const size_t line = tail_.find('\n');
  return line == std::string::npos || line + 1 == tail_.size() ? tail_ : tail_.substr(line + 1);
}

int64_t RankLog::end() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

absl::Status RankLog::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

absl::StatusOr<RankLog::Piece> RankLog::Read(int64_t offset, int64_t most) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (offset < 0 || offset > end_ || most < 0) {
    return absl::OutOfRangeError(absl::StrCat("offset: ", offset, " is not in [0, ", end_,
                                              "], or most: ", most, " is below 0"));
  }
  Piece piece = {.offset = std::max(offset, before_begin_)};
  const bool older = piece.offset < begin_;
  const int64_t begin = older ? before_begin_ : begin_;
  const int64_t end = older ? begin_ : end_;
  piece.bytes.resize(static_cast<size_t>(std::min(most, end - piece.offset)));
  if (!older) {
    NIBBLE_RETURN_IF_ERROR(ReadAt(file_, piece.offset - begin, piece.bytes));
    return piece;
  }
  const int file = OpenRegular(directory_, Name(".1"), O_RDONLY);
  if (file < 0) return DiskError("opening", path_ + ".1", errno);
  absl::Status read = ReadAt(file, piece.offset - begin, piece.bytes);
  close(file);
  if (!read.ok()) return read;
  return piece;
}

}  // namespace nibble
