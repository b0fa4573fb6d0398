// Who may write into a store: one process at a time, by a lock on its file LOCK that ends with the
// process.
//
// Ownership: owns the descriptor; the destructor releases the lock.
// Thread-safety: immutable.
#ifndef NIBBLE_WORKER_CHECKPOINT_STORE_LOCK_H_
#define NIBBLE_WORKER_CHECKPOINT_STORE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble {

class StoreLock {
 public:
  // Unavailable, naming the process, where another holds it (or this one does, a second time).
  static absl::StatusOr<std::shared_ptr<StoreLock>> Take(const std::string& store);
  ~StoreLock();
  // Whether the file that is locked is still the one of that name in `store`. Where it is not, the
  // directory was removed or replaced, and the lock keeps nobody out.
  bool IsOf(const std::string& store) const;
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  explicit StoreLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_STORE_LOCK_H_
