// Where ranks exchange tensors with those of other workers, and where their gangs meet: an address
// of this machine, given by itself or by the name of its network interface. This traffic is neither
// encrypted nor authenticated, so it belongs on a network of its own (docs/guide/security.md).
//
// Ownership: values. Thread-safety: reads the system's interfaces.
#ifndef NIBBLE_WORKER_AGENT_COLLECTIVE_ADDRESS_H_
#define NIBBLE_WORKER_AGENT_COLLECTIVE_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace nibble {

struct CollectiveAddress {
  std::string address;    // at which Gloo and meetings listen; empty: the daemon's
  std::string interface;  // to which NCCL is bound; empty: NCCL chooses
};

// `text`: an IPv4 address of this machine, or the name of an interface, whose first IPv4 address is
// taken. InvalidArgument, naming --collectives and what there is.
absl::StatusOr<CollectiveAddress> FindCollectiveAddress(const std::string& text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_COLLECTIVE_ADDRESS_H_
