// Collectives between CPU ranks, over Gloo's TCP connections: every rank is connected with every
// other and operations run in the call itself, on the calling thread and one that moves bytes.
//
// ReduceScatter sends every slice straight to its owner, which adds the slices up in rank order
// while the next ones arrive. It moves as many bytes per rank as a ring, (world - 1) · count, and
// needs a bounded buffer beside its operands (64 MiB at most, 6 MiB for two ranks).
//
// An operation fails when nothing has arrived for `timeout`: long operations may take longer than
// that as long as they move.
//
// Ownership, thread-safety: as collective.h.
#ifndef NIBBLE_WORKER_TRAINER_COMM_GLOO_COLLECTIVE_H_
#define NIBBLE_WORKER_TRAINER_COMM_GLOO_COLLECTIVE_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/comm/collective.h"

namespace nibble {

struct GlooOptions {
  int rank = 0;
  int world = 1;  // at most kMaxGlooWorld
  // As Rendezvous::Open: "file:/directory", "tcp:host:port", "served:host:port".
  std::string rendezvous;
  // Names this attempt at forming a group; no two attempts at one rendezvous may share a name.
  std::string attempt = "0";
  // Of every operation without progress.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // Until every rank has come and is connected.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  // Where this rank listens: an address, or an interface if one is named. Traffic is neither
  // encrypted nor authenticated: leave loopback only for a network that is trusted.
  std::string bind_address = "127.0.0.1";
  std::string interface;
};

inline constexpr int kMaxGlooWorld = 1024;

// Returns once every rank has called it. INVALID_ARGUMENT names the bad option;
// DEADLINE_EXCEEDED names the ranks that did not come. A world of one is CreateLocal's.
absl::StatusOr<std::unique_ptr<Collective>> CreateGloo(const GlooOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_GLOO_COLLECTIVE_H_
