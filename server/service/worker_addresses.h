// Which addresses a worker may name as its own. The coordinator and other workers connect to them,
// so a worker could otherwise make them connect to programs that it cannot reach itself: to their
// own machine, to a cloud's metadata service on a link-local address, to the coordinator.
//
// Thread-safety: values and const methods.
#ifndef NIBBLE_SERVER_SERVICE_WORKER_ADDRESSES_H_
#define NIBBLE_SERVER_SERVICE_WORKER_ADDRESSES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/listen_address.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

class WorkerAddresses {
 public:
  // `own`: where the coordinator listens.
  explicit WorkerAddresses(std::vector<ListenAddress> own) : own_(std::move(own)) {}

  // InvalidArgument, naming the field, unless each address of the identity is host:port of one
  // host. Refused are multicast; the coordinator's own; loopback, unless the worker is on this
  // machine; and link-local, unless the worker connects from a link-local address. `peer`: the
  // worker's PeerHost. Names are not resolved.
  absl::Status Check(const v1::WorkerIdentity& identity, const std::string& peer) const;

 private:
  absl::Status CheckOne(const char* field, const std::string& address,
                        const std::string& peer) const;
  bool IsOwn(const ListenAddress& named, const std::string& peer) const;

  const std::vector<ListenAddress> own_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WORKER_ADDRESSES_H_
