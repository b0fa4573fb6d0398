// Several copies of a run's checkpoints, each a directory (directory_copy.h) under one prefix, and
// the object PREFIX/nibble-copies.json, which lists complete ones only, the newest last:
//
//   {"version": 1, "copies": ["step-000000000040-attempt-0002"], "store": "0a1b…"}
//
// `store` is the id of the coordinator store that owns the copies; lists that older versions wrote
// have none. An owner never writes over another one's copies, nor removes them.
//
// One writer at a time: a list that two write at once may lose a name, but names no incomplete
// copy. Of two owners that begin at once, one is refused when it adds its copy.
//
// Ownership: borrows the store during the call. Thread-safety: that of the store.
#ifndef NIBBLE_COMMON_S3_COPIES_H_
#define NIBBLE_COMMON_S3_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/s3/object_store.h"

namespace nibble::s3 {

// Empty if there is no list. DataLoss if it is not one; FailedPrecondition, naming both, for a
// newer version.
absl::StatusOr<std::vector<std::string>> ListCopies(ObjectStore& store, const Place& prefix);

// The name of the copy of a checkpoint: "step-000000000040-attempt-0002".
std::string CopyName(int64_t step, int64_t attempt);

// Whose copies a writer may write over.
struct CopyOwner {
  std::string store;        // id; empty: unknown, nothing is checked and the owner stays
  bool continues = false;   // also those without an owner: the writer has made them
  bool takes_over = false;  // also another owner's, which is no longer one
};

// Before the upload of the copy PREFIX/`name`: makes `owner` that of the list, takes the copy off
// the list and removes what is there of it, since an earlier try, perhaps on another host, may have
// had other files; and aborts the multipart uploads below PREFIX/, which are left where an upload
// was killed, or could not reach the store to abort them.
// FailedPrecondition, naming both owners, if the copies there are another one's.
absl::Status BeginCopy(ObjectStore& store, const Place& prefix, const std::string& name,
                       const CopyOwner& owner = {});

// Lists the copy PREFIX/`name`, which is complete, as the newest of at most `keep`, and removes
// every other directory below PREFIX that has the name of a copy: copies that are listed no longer,
// and what interrupted uploads and removals have left. Returns the names of those that were
// removed. If a removal fails, the next call repeats it. `owner`: the store of BeginCopy's;
// FailedPrecondition if the list has another one by now.
absl::StatusOr<std::vector<std::string>> AddCopy(ObjectStore& store, const Place& prefix,
                                                 const std::string& name, size_t keep,
                                                 const std::string& owner = "");

}  // namespace nibble::s3

#endif  // NIBBLE_COMMON_S3_COPIES_H_
