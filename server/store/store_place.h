// Whether the files of an open store are still where it was opened. A directory that is removed or
// replaced underneath a process changes nothing for its open files: writes and syncs go on to
// succeed, into files that no later process finds.
//
// Ownership: owns a descriptor of each place that it watches. Thread-safety: immutable.
#ifndef NIBBLE_SERVER_STORE_STORE_PLACE_H_
#define NIBBLE_SERVER_STORE_STORE_PLACE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

class StorePlace {
 public:
  // Of a store that is open: its directory, and each of `names` in it, none of which is ever
  // replaced while the store is open.
  static absl::StatusOr<std::unique_ptr<StorePlace>> Watch(const std::string& directory,
                                                           const std::vector<std::string>& names);
  ~StorePlace();
  StorePlace(const StorePlace&) = delete;
  StorePlace& operator=(const StorePlace&) = delete;

  // NotFound, naming the directory and what is gone or is another file under the same name. What
  // cannot be looked at now (an error of the disk) does not count as gone.
  absl::Status Check() const;

 private:
  explicit StorePlace(std::string directory) : directory_(std::move(directory)) {}

  const std::string directory_;
  std::vector<std::pair<std::string, int>> watched_;  // path, descriptor
};

// NotFound, as of StorePlace::Check: `path` of the store in `directory` is gone.
absl::Status StoreGone(const std::string& directory, const std::string& path,
                       const std::string& how);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_PLACE_H_
