// A rendezvous in a directory that every rank sees: one file per key, complete or absent.
//
// The directory must exist. What a rank wrote stays until Done: an attempt that fails leaves its
// notes to the ranks that have not read them yet.
// Ownership: owns nothing but a list of its files. Thread-safety: one thread at a time per object;
// any number of processes per directory.
#ifndef NIBBLE_WORKER_TRAINER_COMM_FILE_STORE_H_
#define NIBBLE_WORKER_TRAINER_COMM_FILE_STORE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/rendezvous_store.h"

namespace nibble {

class FileStore final : public RendezvousStore {
 public:
  // NOT_FOUND or FAILED_PRECONDITION if `directory` is not one.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& directory);

  absl::Status Set(std::string_view key, std::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override;
  void Done() override;

 private:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}
  // Any key makes one plain file name: what is not a letter or a digit is written in hexadecimal.
  std::string PathOf(std::string_view key) const;

  const std::string directory_;
  std::vector<std::string> written_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_FILE_STORE_H_
