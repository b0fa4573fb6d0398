// Collectives between CPU ranks over Gloo's TCP connections: every rank is connected to every
// other, and operations run within the call, on the calling thread and an I/O thread.
//
// ReduceScatter sends every slice straight to its owner, which adds the slices up in rank order
// while the next ones arrive. It moves as many bytes per rank as a ring, (world - 1) · count, and
// needs a bounded buffer beside its operands (64 MiB at most, 6 MiB for two ranks).
//
// An operation fails when nothing has arrived for `timeout`: it may take longer as long as it makes
// progress.
//
// Ownership, thread-safety: as collective.h.
#ifndef NIBBLE_WORKER_TRAINER_COMM_GLOO_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_GLOO_COLLECTIVE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

struct GlooOptions {
  int rank = 0;
  int world = 1;  // at most kMaxGlooWorld
  // As Rendezvous::Open: "tcp:host:port" or "served:host:port".
  std::string rendezvous;
  // Names this attempt at forming a group; no two attempts at one rendezvous may share a name.
  std::string attempt = "0";
  // For every operation, without progress.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // Until every rank has arrived and is connected.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  // Where this rank listens: an address, or an interface if it is not empty. Traffic is neither
  // encrypted nor authenticated: leave loopback only on a trusted network.
  std::string bind_address = "127.0.0.1";
  std::string interface;
  // Whether this rank is asked to give up: then the operation that it is in fails within 100 ms,
  // and so do those of the other ranks. Called from the threads that wait. Null: never.
  std::function<bool()> gives_up = nullptr;
};

inline constexpr int kMaxGlooWorld = 1024;

// Returns once every rank has called it. INVALID_ARGUMENT names the bad option; DEADLINE_EXCEEDED
// names the ranks that did not arrive. For a world of one it returns CreateLocal().
absl::StatusOr<std::unique_ptr<Collective>> CreateGloo(const GlooOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_GLOO_COLLECTIVE_H_
