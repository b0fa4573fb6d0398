// The one port of a daemon, and the services on it that other workers and the coordinator call:
//
//   nibble.v1.ShardStore   the shards stored here: the tensor bytes of a shard, slice after slice,
//                          in the order of its manifest. A shard is served as soon as it is sealed;
//                          bytes that fail their checksum are not sent.
//   nibble.v1.RankLogs     the logs of ranks, of running gangs and of ended ones that are still on
//                          disk. Each reader has its own offset and never delays the rank; bytes
//                          that the log has discarded are replaced by a line with their number.
//                          Lines are cut at kMaxLineBytes and made UTF-8. The number of readers is
//                          bounded. Also the event logs of jobs, as far as they are written.
//   nibble.v1.GangMeeting  gang_preparation.h
//
// Ownership: PeerServer owns its services, the server and its port; the services borrow their
// arguments. Thread-safety: all methods from any thread; calls are served by gRPC's threads.
#ifndef NIBBLE_WORKER_AGENT_PEER_SERVER_H_
#define NIBBLE_WORKER_AGENT_PEER_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class Server;
class Service;
class Status;
}  // namespace grpc

namespace nibble {

class CheckpointRegistry;
class RankLog;

// PEM texts; without a root certificate connections are neither encrypted nor authenticated.
struct LinkSecurity {
  std::string root_certificates;
  std::string certificate;
  std::string private_key;
};

// The host of "host:port"; for "[::1]:7000" without the brackets.
std::string HostOf(const std::string& address);

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// For calls to another worker or to the coordinator, with this worker's certificate if it has one.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const LinkSecurity& security);

// gRPC's headers are slow to compile, so a service is deleted where its type is complete.
struct DeletePeerService {
  void operator()(grpc::Service* service) const;
};
using PeerService = std::unique_ptr<grpc::Service, DeletePeerService>;

class PeerServer {
 public:
  // Listens at `address`, host:port; port 0 picks a free one. With a root certificate both sides
  // must present certificates. Unavailable if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<PeerServer>> Start(const std::string& address,
                                                           const LinkSecurity& security,
                                                           std::vector<PeerService> services);
  // Cancels the calls in progress.
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // With the actual port.
  const std::string& address() const { return address_; }

 private:
  PeerServer();

  std::string address_;
  std::vector<PeerService> services_;
  std::unique_ptr<grpc::Server> server_;
};

// --- Services

inline constexpr size_t kMaxLineBytes = 16 << 10;

// Finds the log of one rank of an attempt. NotFound if there is none. Called from gRPC's threads.
using FindRankLog = std::function<absl::StatusOr<std::shared_ptr<const RankLog>>(
    const std::string& job, int64_t attempt, int32_t rank)>;

// Finds the event log of a job, as it is now. NotFound if this worker has none. As above.
using FindEventLog =
    std::function<absl::StatusOr<std::shared_ptr<const RankLog>>(const std::string& job)>;

struct LogServiceLimits {
  int readers = 64;  // at once; more are refused with RESOURCE_EXHAUSTED
};

PeerService MakeLogService(FindRankLog find, FindEventLog find_events,
                           const LogServiceLimits& limits);

// `worker`: this worker's name, sent with every answer (kShardHolderKey), so that a reader that
// finds damage can report whose copy it is; empty: not sent.
PeerService MakeShardService(const CheckpointRegistry& registry, std::string worker);

// Key in the initial metadata of every answer.
inline constexpr char kShardHolderKey[] = "nibble-worker";

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PEER_SERVER_H_
