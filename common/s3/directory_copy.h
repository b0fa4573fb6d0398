// Copies of whole directories (checkpoints, exported models, backups) in object storage.
//
// A copy is the directory's files under a prefix, and last the object PREFIX/nibble-files.json,
// which lists them with size and SHA-256. Without that object a copy does not exist, so an
// interrupted upload is never taken for a complete one. A download checks every hash and appears
// under its name complete or not at all.
//
//   {"version": 1, "files": [{"name": "shard-00000/CURRENT", "bytes": 16, "sha256": "…"}]}
//
// Ownership: borrows the store during the call. Thread-safety: that of the store.
#ifndef NIBBLE_COMMON_S3_DIRECTORY_COPY_H_
#define NIBBLE_COMMON_S3_DIRECTORY_COPY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/s3/object_store.h"

namespace nibble::s3 {

struct Copied {
  int64_t files = 0;
  int64_t bytes = 0;
};

// Uploads the regular files of the directory. AlreadyExists if there is a complete copy, unless
// `overwrite`; FailedPrecondition for a link or device, and for a file named nibble-files.json or
// with a name that is not UTF-8; NotFound: no such directory; DataLoss, naming the object, if the
// store does not list what it was sent; errors of ObjectStore.
absl::StatusOr<Copied> PushDirectory(ObjectStore& store, const std::string& directory,
                                     const Place& place, bool overwrite);

// Downloads a copy to a new directory, whose parents are made. AlreadyExists if `directory` exists;
// NotFound if there is no complete copy; DataLoss, naming the file, if it differs from what was
// uploaded.
absl::StatusOr<Copied> PullDirectory(ObjectStore& store, const Place& place,
                                     const std::string& directory);

// Removes every object below the place, complete copy or not: its list first, so that no copy is
// taken for complete when it is not. OK if there is none.
absl::Status RemoveDirectoryCopy(ObjectStore& store, const Place& place);

}  // namespace nibble::s3

#endif  // NIBBLE_COMMON_S3_DIRECTORY_COPY_H_
