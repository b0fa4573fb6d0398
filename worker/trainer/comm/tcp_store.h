// The client side of the TCP rendezvous.
//
// Ownership: owns its connection. Thread-safety: one thread at a time per object.
#ifndef NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_H_
#define NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/comm/rendezvous_store.h"

namespace nibble {

class TcpStore final : public RendezvousStore {
 public:
  // Tries until `deadline`, since the server may start later than its clients; then
  // DEADLINE_EXCEEDED with the last reason.
  static absl::StatusOr<std::unique_ptr<TcpStore>> Connect(const std::string& address,
                                                           Deadline deadline);
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  // UNAVAILABLE if the server is gone or does not speak the protocol; the object stays unusable.
  absl::Status Set(std::string_view key, std::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override;

 private:
  TcpStore(std::string address, int fd) : address_(std::move(address)), fd_(fd) {}
  absl::StatusOr<std::string> Ask(std::string_view request, Deadline deadline);
  absl::Status Exchange(std::string_view request, Deadline deadline, absl::StatusCode* code,
                        std::string* body);
  absl::Status Move(bool out, char* data, size_t bytes, Deadline deadline);

  const std::string address_;
  int fd_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_TCP_STORE_H_
