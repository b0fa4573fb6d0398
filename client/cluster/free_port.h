// A port of loopback that nobody listens on.
//
// Ownership: none kept. Thread-safety: a function of the machine; what is free may be taken by the
// time it is used.
#ifndef NIBBLE_CLIENT_CLUSTER_FREE_PORT_H_
#define NIBBLE_CLIENT_CLUSTER_FREE_PORT_H_

#include "absl/status/statusor.h"

namespace nibble {

bool IsPortFree(int port);

// Below those that the kernel gives to outgoing connections: one of these may take the port of a
// program that is away for a while, and a client that tries to reach it may even reach itself.
absl::StatusOr<int> ChooseFreePort();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_FREE_PORT_H_
