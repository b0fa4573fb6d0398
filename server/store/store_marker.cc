#include "server/store/store_marker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "server/store/store.h"
#include "server/store/store_format.h"

namespace nibble {
namespace {

constexpr absl::string_view kHead = "nibble coordinator store\nversion ";
constexpr absl::string_view kCluster = "\ncluster ";

}  // namespace

std::string EncodeStoreMarker(absl::string_view cluster) {
  const std::string text = absl::StrCat(kHead, store_format::kVersion, kCluster, cluster, "\n");
  const uint32_t crc = Crc32c({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  return absl::StrFormat("%scrc32c %08x\n", text, crc);
}

absl::StatusOr<std::string> ParseStoreMarker(absl::string_view content, absl::string_view path) {
  absl::string_view rest = content;
  int version = 0;
  if (!absl::ConsumePrefix(&rest, kHead) ||
      !absl::SimpleAtoi(rest.substr(0, rest.find('\n')), &version)) {
    return absl::DataLossError(absl::StrCat(path, " is not the marker of a coordinator's store"));
  }
  // Before all else that it says: a newer version may say it in another way.
  if (version > store_format::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the store has format version ",
                                                      version, ", this program knows up to ",
                                                      store_format::kVersion));
  }
  rest.remove_prefix(std::min(rest.find('\n'), rest.size()));
  if (absl::ConsumePrefix(&rest, kCluster)) {
    const std::string cluster(rest.substr(0, rest.find('\n')));
    if (CheckClusterName(cluster).ok() && content == EncodeStoreMarker(cluster)) return cluster;
  }
  return absl::DataLossError(
      absl::StrCat(path, " is damaged: it is not what its checksum was made of"));
}

absl::Status CheckSameCluster(absl::string_view path, absl::string_view stored,
                              absl::string_view wanted) {
  if (stored == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the store ", path, " belongs to cluster \"",
                                                    stored, "\", not to \"", wanted, "\""));
}

}  // namespace nibble
