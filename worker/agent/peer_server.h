// The one port of a daemon, and the services on it that other workers and the coordinator call:
//
//   nibble.v1.ShardStore   the shards stored here: the tensor bytes of a shard, slice after slice,
//                          in the order of its manifest. A shard is served as soon as it is sealed;
//                          bytes that fail their checksum are not sent.
//   nibble.v1.RankLogs     the logs of ranks, of running gangs and of ended ones that are still on
//                          disk. Each reader has its own offset and never delays the rank; bytes
//                          that the log has discarded are replaced by a line with their number.
//                          Lines are cut at kMaxLineBytes and made UTF-8.
//   nibble.v1.GangMeeting  gang_preparation.h
//
// Readers of shards and of logs hold a thread each, so their number is bounded, and one that takes
// nothing is cut off with a reason (stream_readers.h). A connection whose peer does not answer
// probes is closed. A request that is no message of its call's type is answered INVALID_ARGUMENT.
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
#include "absl/strings/string_view.h"
#include "common/identity/credentials.h"
#include "common/identity/peer_name.h"
#include "worker/agent/reader_limits.h"

namespace grpc {
class ChannelCredentials;
class Server;
class Service;
class Status;
}  // namespace grpc

namespace nibble {

class CheckpointRegistry;
class OwnPaths;
class RankLog;

// How a daemon reaches others, and is reached.
struct LinkSecurity {
  std::shared_ptr<const Credentials> credentials;  // null: without TLS
  std::string token;  // sent to the coordinator; empty: none. Never logged

  bool secure() const { return credentials != nullptr && credentials->secure(); }
};

// The host of "host:port"; for "[::1]:7000" without the brackets.
std::string HostOf(const std::string& address);

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// For calls to another worker or to the coordinator, with this worker's certificate if it has one.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const LinkSecurity& security,
                                                               PeerKind to);

// Which calls of the services below a peer may make: workers those of shards and meetings, the
// coordinator those of logs. PermissionDenied names the peer and the call.
absl::Status CheckPeerCall(const PeerName& peer, absl::string_view call);

// gRPC's headers are slow to compile, so a service is deleted where its type is complete.
struct DeletePeerService {
  void operator()(grpc::Service* service) const;
};
using PeerService = std::unique_ptr<grpc::Service, DeletePeerService>;

class PeerServer {
 public:
  // Listens at `address`, host:port; port 0 picks a free one. With TLS callers must present
  // certificates, and CheckPeerCall applies to their calls; `refused`, if it is not null, gets its
  // refusals, at most one a second, in gRPC's threads. `paths`: hides them in every answer; may be
  // null. Unavailable if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<PeerServer>> Start(
      const std::string& address, const LinkSecurity& security, std::vector<PeerService> services,
      std::function<void(const std::string& refusal)> refused = nullptr,
      std::shared_ptr<OwnPaths> paths = nullptr);
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
inline constexpr size_t kMaxEventBytes = 1 << 20;  // as above, in an event log

// Finds the log of one rank of an attempt. NotFound if there is none. Called from gRPC's threads.
using FindRankLog = std::function<absl::StatusOr<std::shared_ptr<const RankLog>>(
    const std::string& job, int64_t attempt, int32_t rank)>;

// The event log of a job, a file that rank 0 appends to over all attempts on this worker.
struct EventFile {
  std::string path;             // there may be no file yet
  bool started = false;         // rank 0 of the attempt in question has started here
  std::function<bool()> ended;  // and has ended
};
// Called from gRPC's threads. InvalidArgument if the name cannot be a job's.
using FindEventFile =
    std::function<absl::StatusOr<EventFile>(const std::string& job, int64_t attempt)>;

// Takes a trace of the next steps of an attempt's ranks here: waits until it is in a file, whose
// path it returns, and which the caller removes; ends early once `cancelled`. FailedPrecondition if
// the ranks do not run; ResourceExhausted if another trace is being taken. Called from gRPC's
// threads.
using TraceRanks = std::function<absl::StatusOr<std::string>(
    const std::string& job, int64_t attempt, int64_t steps,
    const std::function<bool()>& cancelled)>;
inline constexpr int32_t kMaxTraceSteps = 100;

// Readers of logs are coordinators, which cut off their own slow callers (--watch-stall-ms). One
// that reads many ranks for a caller takes from each in turn, so it may be slow without fault.
inline constexpr int64_t kLogReaderStallMs = 900'000;

// More readers than `limits` allow, and slow ones, get RESOURCE_EXHAUSTED.
PeerService MakeLogService(FindRankLog find, FindEventFile find_events, TraceRanks trace,
                           const ReaderLimits& limits = {.stall_ms = kLogReaderStallMs});

// `worker`: this worker's name, sent with every answer (kShardHolderKey), so that a reader that
// finds damage can report whose copy it is; empty: not sent. More readers than `limits` allow, and
// slow ones, get UNAVAILABLE, with which they try other workers, and this one again.
PeerService MakeShardService(const CheckpointRegistry& registry, std::string worker,
                             const ReaderLimits& limits = {.most = 256});

// Key in the initial metadata of every answer.
inline constexpr char kShardHolderKey[] = "nibble-worker";

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PEER_SERVER_H_
