#include "worker/checkpoint/store_layout.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/crc32c.h"
#include "common/status_macros.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

constexpr std::array<absl::string_view, 3> kPrefixes = {"writing-", "step-", "deleted-"};
constexpr absl::string_view kShardPrefix = "shard-";

// Consumes a number of digits only, and `end` after it.
std::optional<int64_t> TakeNumber(absl::string_view& name, absl::string_view end) {
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  int64_t value = 0;
  if (!absl::SimpleAtoi(name.substr(0, digits), &value)) return std::nullopt;
  name.remove_prefix(digits);
  if (!absl::ConsumePrefix(&name, end)) return std::nullopt;
  return value;
}

template <class Each>
absl::Status ForEachName(const std::string& path, Each each) {
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    each(entry->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("listing ", path));
  return absl::OkStatus();
}

}  // namespace

std::string DirectoryName(const StoredDirectory& directory) {
  return absl::StrFormat("%s%012d-attempt-%04d-%08d",
                         kPrefixes[static_cast<size_t>(directory.stage)], directory.step,
                         directory.attempt, directory.serial);
}

std::optional<StoredDirectory> ParseDirectoryName(absl::string_view name) {
  for (size_t stage = 0; stage < kPrefixes.size(); ++stage) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, kPrefixes[stage])) continue;
    const std::optional<int64_t> step = TakeNumber(rest, "-attempt-");
    if (!step.has_value()) return std::nullopt;
    const std::optional<int64_t> attempt = TakeNumber(rest, "-");
    if (!attempt.has_value()) return std::nullopt;
    const std::optional<int64_t> serial = TakeNumber(rest, "");
    if (!serial.has_value()) return std::nullopt;
    const StoredDirectory directory = {static_cast<Stage>(stage), *step, *attempt, *serial};
    if (DirectoryName(directory) != name) return std::nullopt;
    return directory;
  }
  return std::nullopt;
}

std::string ShardDirectoryName(int32_t rank) {
  return absl::StrFormat("%s%05d", kShardPrefix, rank);
}

std::string SealFileName(int32_t rank) { return absl::StrCat(ShardDirectoryName(rank), ".seal"); }

std::optional<int32_t> ParseShardDirectoryName(absl::string_view name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, kShardPrefix)) return std::nullopt;
  const std::optional<int64_t> rank = TakeNumber(rest, "");
  if (!rank.has_value() || *rank > std::numeric_limits<int32_t>::max()) return std::nullopt;
  if (ShardDirectoryName(static_cast<int32_t>(*rank)) != name) return std::nullopt;
  return static_cast<int32_t>(*rank);
}

absl::StatusOr<std::vector<StoredDirectory>> ScanStore(const std::string& path) {
  std::vector<StoredDirectory> found;
  NIBBLE_RETURN_IF_ERROR(ForEachName(path, [&found](const std::string& name) {
    if (const auto directory = ParseDirectoryName(name)) found.push_back(*directory);
  }));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.serial != b.serial ? a.serial < b.serial : a.stage < b.stage;
  });
  return found;
}

absl::StatusOr<std::vector<int32_t>> ScanShards(const std::string& path) {
  std::vector<int32_t> found;
  NIBBLE_RETURN_IF_ERROR(ForEachName(path, [&found](const std::string& name) {
    if (const auto rank = ParseShardDirectoryName(name)) found.push_back(*rank);
  }));
  std::sort(found.begin(), found.end());
  return found;
}

namespace {

constexpr absl::string_view kFirstLine = "nibble checkpoint store";
constexpr absl::string_view kCrcLine = "crc32c ";

std::string CrcLine(absl::string_view covered) {
  const uint32_t crc = Crc32c({reinterpret_cast<const std::byte*>(covered.data()), covered.size()});
  return absl::StrFormat("%s%08x\n", kCrcLine, crc);
}

absl::Status Damaged(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("store file is damaged: ", why));
}

}  // namespace

std::string EncodeStoreFile(const StoreFile& file) {
  std::string text = absl::StrCat(kFirstLine, "\nversion ", kStoreVersion, "\ncluster ",
                                  file.identity.cluster, "\njob ", file.identity.job, "\nattempt ",
                                  file.attempt, "\npinned ", absl::StrJoin(file.pinned, " "), "\n");
  return absl::StrCat(text, CrcLine(text));
}

absl::StatusOr<StoreFile> DecodeStoreFile(absl::string_view bytes) {
  const size_t crc_at = bytes.rfind(kCrcLine);
  if (crc_at == absl::string_view::npos) return Damaged("it has no checksum");
  const absl::string_view covered = bytes.substr(0, crc_at);
  if (bytes.substr(crc_at) != CrcLine(covered)) return Damaged("its checksum is another");

  const std::vector<absl::string_view> lines = absl::StrSplit(covered, '\n');
  if (lines.size() < 2 || lines[0] != kFirstLine) return Damaged("its first line is another");
  absl::string_view version_text = lines[1];
  int64_t version = 0;
  if (!absl::ConsumePrefix(&version_text, "version ") ||
      !absl::SimpleAtoi(version_text, &version)) {
    return Damaged("it has no version");
  }
  if (version != kStoreVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "store is of format version ", version, "; this program knows version ", kStoreVersion));
  }
  if (lines.size() != 7 || !lines[6].empty()) return Damaged("it does not have its seven lines");
  StoreFile file;
  absl::string_view cluster = lines[2], job = lines[3], attempt = lines[4], pinned = lines[5];
  if (!absl::ConsumePrefix(&cluster, "cluster ") || !absl::ConsumePrefix(&job, "job ") ||
      !absl::ConsumePrefix(&attempt, "attempt ") || !absl::ConsumePrefix(&pinned, "pinned ")) {
    return Damaged("a field is missing");
  }
  file.identity = {std::string(cluster), std::string(job)};
  if (absl::Status status = CheckIdentity(file.identity); !status.ok()) {
    return Damaged(status.message());
  }
  if (!absl::SimpleAtoi(attempt, &file.attempt) || file.attempt < 0) {
    return Damaged("its attempt is no number");
  }
  for (const absl::string_view step : absl::StrSplit(pinned, ' ', absl::SkipEmpty())) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(step, &value) || value < 0) return Damaged("a pinned step is no number");
    file.pinned.insert(value);
  }
  return file;
}

absl::StatusOr<std::shared_ptr<StoreLock>> StoreLock::Take(const std::string& store) {
  const std::string path = absl::StrCat(store, "/", kLockFileName);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  int taken;
  do {
    taken = flock(fd, LOCK_EX | LOCK_NB);
  } while (taken != 0 && errno == EINTR);
  if (taken != 0) {
    const absl::Cleanup close_fd = [fd] { (void)close(fd); };
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("locking ", path));
    char holder[32] = {};
    const ssize_t got = pread(fd, holder, sizeof(holder) - 1, 0);
    return absl::UnavailableError(absl::StrCat(
        "store ", store, " is open for writing in process ",
        got > 0 ? absl::StripAsciiWhitespace(holder) : absl::string_view("(not known)")));
  }
  // Only for the message above: a full disk must not keep a store from being read.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(fd, pid.data(), pid.size(), 0);
  }
  return std::shared_ptr<StoreLock>(new StoreLock(fd));
}

bool StoreLock::IsOf(const std::string& store) const {
  struct stat locked = {};
  struct stat named = {};
  const std::string path = absl::StrCat(store, "/", kLockFileName);
  if (fstat(fd_, &locked) != 0) return true;
  if (stat(path.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return named.st_ino == locked.st_ino && named.st_dev == locked.st_dev;
}

StoreLock::~StoreLock() {
  // A forked child has the descriptor too, but must not keep the lock.
  (void)flock(fd_, LOCK_UN);
  (void)close(fd_);
}

}  // namespace nibble
