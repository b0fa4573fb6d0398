// For tests of stores: directories, histories, and what a store must hold after them.
//
// Ownership: values. Thread-safety: free functions.
#ifndef NIBBLE_SERVER_STORE_STORE_TESTING_H_
#define NIBBLE_SERVER_STORE_STORE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace nibble::store_testing {

// A directory of its own, removed with what is in it.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A function of its arguments: changes to a few entities of three kinds, a record, some topics.
StoreBatch RandomBatch(uint64_t seed, size_t value_bytes);

// What a store holds after some batches.
struct Content {
  std::map<std::pair<std::string, std::string>, std::string> entities;
  std::map<uint64_t, std::pair<std::string, std::vector<std::string>>> journal;

  void Apply(uint64_t sequence, const StoreBatch& batch);
  friend bool operator==(const Content&, const Content&) = default;
};

// Everything a store serves, by every way there is to read it: entities all together and one by
// one, the journal from its first record, and each topic that is named there. Internal where the
// ways disagree; else the error of a reading.
absl::StatusOr<Content> ReadAll(const Store& store);

// `content` without the records before `first`.
Content From(Content content, uint64_t first);

}  // namespace nibble::store_testing

#endif  // NIBBLE_SERVER_STORE_STORE_TESTING_H_
