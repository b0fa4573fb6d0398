// The other side of flood_bench: a flood of a coordinator, and a bare server to flood. Each runs in
// a process of its own until its time is over.
//
// Ownership: values. Thread-safety: all functions.
#ifndef NIBBLE_BENCH_CONTROL_FLOOD_LOAD_H_
#define NIBBLE_BENCH_CONTROL_FLOOD_LOAD_H_

#include <memory>
#include <string>

#include "common/identity/credentials.h"
#include "grpcpp/grpcpp.h"

namespace nibble::bench {

// A connection of its own to the coordinator at `target`.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target, const TlsFiles& files);

// The context of a call by the owner of the token.
std::unique_ptr<grpc::ClientContext> As(const std::string& token);

struct FloodSetting {
  std::string target, token;
  std::string files;  // directory of the certificates
  int connections = 16;
  int calls = 16;       // in flight on each connection
  int patience_ms = 0;  // of a call; 0: it waits for its answer
  double seconds = 5;   // until it ends
};

// Lists jobs as often as it can, at a lower priority. Prints how many calls were served, refused
// and given up, and the seconds. Returns the exit code.
int Flood(const FloodSetting& setting);

// Refuses every call, and does nothing else. Prints its port. Returns the exit code.
int ServeBare(const FloodSetting& setting);

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_CONTROL_FLOOD_LOAD_H_
