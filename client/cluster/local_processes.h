// Helpers for starting programs on this machine: a free port, the cards of each of several workers,
// and the end of a program's log for error messages.
//
// Thread-safety: all functions. A free port may be taken by the time it is used.
#ifndef NIBBLE_CLIENT_CLUSTER_LOCAL_PROCESSES_H_
#define NIBBLE_CLIENT_CLUSTER_LOCAL_PROCESSES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

bool IsPortFree(int port);

// Whether a program on 127.0.0.1 accepts connections at the port.
bool IsListening(int port);

// Below the ephemeral range: an outgoing connection could take the port of a program that is
// restarting, and a client that connects to it could even connect to itself.
absl::StatusOr<int> ChooseFreePort();

// The CUDA_VISIBLE_DEVICES of the worker with this number, from 1, where each has as many cards as
// slots and no card has two workers. `visible`: the cards that all of them may use; empty: every
// card of the machine. Empty if `visible` has none left for the worker.
std::string CardsOfWorker(int worker, int slots, absl::string_view visible);

// At most twelve whole lines; a remark if there are none.
std::string LogTail(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_LOCAL_PROCESSES_H_
