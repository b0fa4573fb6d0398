// Who may have a store open: one process at a time, by a lock on its file LOCK that ends with the
// process.
//
// Ownership: owns the descriptor; the destructor releases the lock. Thread-safety: immutable.
#ifndef NIBBLE_SERVER_STORE_STORE_LOCK_H_
#define NIBBLE_SERVER_STORE_STORE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr char kStoreLockName[] = "LOCK";

class StoreLock {
 public:
  // Unavailable, naming the process, where another holds it (or this one does, a second time).
  static absl::StatusOr<std::unique_ptr<StoreLock>> Take(const std::string& directory);
  ~StoreLock();
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  explicit StoreLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_STORE_LOCK_H_
