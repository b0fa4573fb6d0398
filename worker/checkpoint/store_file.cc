#include "worker/checkpoint/store_file.h"

#include <cstddef>
#include <cstdint>
#include <string>
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
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

constexpr absl::string_view kFirstLine = "nibble checkpoint store";
constexpr absl::string_view kCrcLine = "crc32c ";

std::string CrcLine(absl::string_view covered) {
  const uint32_t crc =
      Crc32c({reinterpret_cast<const std::byte*>(covered.data()), covered.size()});
  return absl::StrFormat("%s%08x\n", kCrcLine, crc);
}

absl::Status Damaged(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("store file is damaged: ", why));
}

}  // namespace

std::string EncodeStoreFile(const StoreFile& file) {
  std::string text = absl::StrCat(kFirstLine, "\nversion ", kStoreVersion, "\ncluster ",
                                  file.identity.cluster, "\njob ", file.identity.job,
                                  "\nattempt ", file.attempt, "\npinned ",
                                  absl::StrJoin(file.pinned, " "), "\n");
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
    return absl::FailedPreconditionError(absl::StrCat("store is of format version ", version,
                                                      "; this program knows version ",
                                                      kStoreVersion));
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

}  // namespace nibble
