// Which coordinator a command speaks to.
//
// Ownership: none kept. Thread-safety: reads the environment and a file; as getenv.
#ifndef NIBBLE_CLIENT_REMOTE_SERVER_ADDRESS_H_
#define NIBBLE_CLIENT_REMOTE_SERVER_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr char kUsualServer[] = "127.0.0.1:7700";

// host:port of, in this order: the flag, NIBBLE_SERVER, what a running local cluster has left in
// ${NIBBLE_HOME:-$HOME/.nibble}/cluster/address, kUsualServer. InvalidArgument names where a value
// that is none comes from.
absl::StatusOr<std::string> FindServerAddress(const std::string& flag);

// Whether the server is on this machine and refuses connections, so that waiting for an answer is
// in vain. False for a server elsewhere, which may be starting or behind something that is.
bool NobodyListensHere(const std::string& server);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_SERVER_ADDRESS_H_
