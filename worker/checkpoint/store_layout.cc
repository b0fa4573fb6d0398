#include "worker/checkpoint/store_layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "worker/checkpoint/disk.h"

namespace nibble {
namespace {

constexpr std::array<absl::string_view, 3> kPrefixes = {"writing-", "step-", "deleted-"};
constexpr absl::string_view kShardPrefix = "shard-";

// The number up to `end`, which is taken too; digits only.
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
  const absl::Status status = ForEachName(path, [&found](const std::string& name) {
    if (const auto directory = ParseDirectoryName(name)) found.push_back(*directory);
  });
  if (!status.ok()) return status;
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.serial != b.serial ? a.serial < b.serial : a.stage < b.stage;
  });
  return found;
}

absl::StatusOr<std::vector<int32_t>> ScanShards(const std::string& path) {
  std::vector<int32_t> found;
  const absl::Status status = ForEachName(path, [&found](const std::string& name) {
    if (const auto rank = ParseShardDirectoryName(name)) found.push_back(*rank);
  });
  if (!status.ok()) return status;
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace nibble
