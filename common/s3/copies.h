// Several copies of directories (directory_copy.h) under one prefix, and their list, the object
// PREFIX/nibble-copies.json, which names complete ones only, the newest last:
//
//   {"version": 1, "copies": ["step-000000000040-attempt-0002"]}
//
// One writer at a time: a list that two write at once may lose a name, but names no incomplete
// copy.
//
// Ownership: borrows the store during the call. Thread-safety: that of the store.
#ifndef NIBBLE_COMMON_S3_COPIES_H_
#define NIBBLE_COMMON_S3_COPIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/s3/object_store.h"

namespace nibble::s3 {

// Empty if there is no list. DataLoss if it is not one; FailedPrecondition, naming both, for a
// newer version.
absl::StatusOr<std::vector<std::string>> ListCopies(ObjectStore& store, const Place& prefix);

// Lists the copy PREFIX/`name`, which is complete, as the newest, and removes all but the newest
// `keep`. Returns the names of those that were removed.
absl::StatusOr<std::vector<std::string>> AddCopy(ObjectStore& store, const Place& prefix,
                                                 const std::string& name, size_t keep);

}  // namespace nibble::s3

#endif  // NIBBLE_COMMON_S3_COPIES_H_
