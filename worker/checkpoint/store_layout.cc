#include "worker/checkpoint/store_layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/crc32c.h"
#include "common/files/file_lock.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

constexpr std::array<absl::string_view, 3> kPrefixes = {"writing-", "step-", "deleted-"};
constexpr absl::string_view kShardPrefix = "shard-";

// Consumes a number of digits only, and `end` after it. Numbers stay far from overflow: a store
// counts on from the largest serial and attempt that it finds.
std::optional<int64_t> TakeNumber(absl::string_view& name, absl::string_view end) {
  constexpr int64_t kLargest = int64_t{1} << 62;
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  int64_t value = 0;
  if (!absl::SimpleAtoi(name.substr(0, digits), &value) || value > kLargest) return std::nullopt;
  name.remove_prefix(digits);
  if (!absl::ConsumePrefix(&name, end)) return std::nullopt;
  return value;
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
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path));
  std::vector<StoredDirectory> found;
  for (const std::string& name : names) {
    if (const auto directory = ParseDirectoryName(name)) found.push_back(*directory);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.serial != b.serial ? a.serial < b.serial : a.stage < b.stage;
  });
  return found;
}

absl::StatusOr<std::vector<int32_t>> ScanShards(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path));
  std::vector<int32_t> found;
  for (const std::string& name : names) {
    if (const auto rank = ParseShardDirectoryName(name)) found.push_back(*rank);
  }
  std::sort(found.begin(), found.end());
  return found;
}

namespace {

constexpr absl::string_view kFirstLine = "nibble checkpoint store";
constexpr absl::string_view kCrcLine = "crc32c ";

std::string CrcLine(absl::string_view covered) {
  return absl::StrFormat("%s%08x\n", kCrcLine, Crc32c(covered));
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
  if (bytes.substr(crc_at) != CrcLine(covered)) return Damaged("its checksum does not match");

  const std::vector<absl::string_view> lines = absl::StrSplit(covered, '\n');
  if (lines.size() < 2 || lines[0] != kFirstLine)
    return Damaged("its first line is not that of a store");
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
  if (lines.size() != 7 || !lines[6].empty()) return Damaged("it does not have seven lines");
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
    return Damaged("its attempt is not a number");
  }
  for (const absl::string_view step : absl::StrSplit(pinned, ' ', absl::SkipEmpty())) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(step, &value) || value < 0)
      return Damaged("a pinned step is not a number");
    file.pinned.insert(value);
  }
  return file;
}

absl::StatusOr<std::string> ReadRecord(const std::string& path) {
  constexpr size_t kMaxRecordBytes = size_t{1} << 30;
  absl::StatusOr<std::string> record = ReadWholeFile(path, kMaxRecordBytes);
  if (!absl::IsFailedPrecondition(record.status())) return record;
  return absl::DataLossError(record.status().message());
}

absl::StatusOr<std::shared_ptr<const FileLock>> LockStore(const std::string& path) {
  absl::StatusOr<FileLock> lock = FileLock::TryAcquire(absl::StrCat(path, "/", kLockFileName));
  if (lock.ok()) return std::make_shared<const FileLock>(*std::move(lock));
  return absl::Status(
      lock.status().code(),
      absl::StrCat("store ", path, " cannot be written: ", lock.status().message()));
}

}  // namespace nibble
