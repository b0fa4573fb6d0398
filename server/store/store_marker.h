// The file STORE: says that a directory is a coordinator's store, of which version and cluster.
//
// Ownership: values. Thread-safety: free functions.
#ifndef NIBBLE_SERVER_STORE_STORE_MARKER_H_
#define NIBBLE_SERVER_STORE_STORE_MARKER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

inline constexpr char kStoreMarkerName[] = "STORE";

std::string EncodeStoreMarker(absl::string_view cluster);

// The cluster's name. FailedPrecondition, naming both versions, for a newer one; DataLoss for what
// is no marker. `path` is for the messages.
absl::StatusOr<std::string> ParseStoreMarker(absl::string_view content, absl::string_view path);

// FailedPrecondition, naming both, where the store is not `wanted`'s.
absl::Status CheckSameCluster(absl::string_view path, absl::string_view stored,
                              absl::string_view wanted);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_MARKER_H_
