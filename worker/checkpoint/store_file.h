// The file STORE: whose checkpoints these are, which attempt was seen last, and which steps are
// kept. It is text, replaced whole, and ends with a checksum of what is before.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_STORE_FILE_H_
#define NIBBLE_WORKER_CHECKPOINT_STORE_FILE_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

inline constexpr int64_t kStoreVersion = 1;

struct StoreFile {
  StoreIdentity identity;
  // The highest attempt that was seen: a checkpoint of a lower one is not committed.
  int64_t attempt = 0;
  std::set<int64_t> pinned;  // steps

  friend bool operator==(const StoreFile&, const StoreFile&) = default;
};

// The identity is valid.
std::string EncodeStoreFile(const StoreFile& file);

// DataLoss for a damaged file, FailedPrecondition for one of a newer version.
absl::StatusOr<StoreFile> DecodeStoreFile(absl::string_view bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_STORE_FILE_H_
