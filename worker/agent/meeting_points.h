// Where the ranks of gangs on several workers meet: this daemon serves a rendezvous for each gang
// whose rank 0 it has, and tells the other workers where it is (nibble.v1.GangMeeting).
//
// The daemons meet there first, so that no rank waits for one whose worker still fetches the
// checkpoint that they begin from.
//
// Ownership: owns the rendezvous servers. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_MEETING_POINTS_H_
#define NIBBLE_WORKER_AGENT_MEETING_POINTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/link_security.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

class MeetingPoints {
 public:
  // Ranks reach this worker at `host`.
  explicit MeetingPoints(std::string host) : host_(std::move(host)) {}

  // For nibble-trainer --rendezvous; again it is the same. Aborted where a newer attempt of the job
  // is known.
  absl::StatusOr<std::string> Open(const std::string& job, int64_t attempt);
  // Its ranks have ended.
  void Close(const std::string& job, int64_t attempt);
  // As GangMeeting.GetMeeting.
  absl::StatusOr<std::string> Find(const std::string& job, int64_t attempt) const;

 private:
  struct Meeting {
    int64_t attempt = 0;
    std::unique_ptr<TcpStoreServer> server;
  };
  std::string AddressOf(const Meeting& meeting) const;

  const std::string host_;
  mutable std::mutex mutex_;
  std::map<std::string, Meeting> meetings_;  // the newest of each job that runs, guarded by mutex_
};

std::unique_ptr<grpc::Service> MakeMeetingService(const MeetingPoints& points);

// Asks the worker that has rank 0 until it knows. Aborted, Cancelled.
absl::StatusOr<std::string> AskForMeeting(const v1::DesiredGang& gang, const LinkSecurity& security,
                                          Cancellation& cancellation);

// Says at the meeting that this worker is ready, and waits until all members are. Cancelled, or
// Unavailable where the meeting is gone.
absl::Status AwaitMembers(const std::string& rendezvous, const v1::DesiredGang& gang,
                          Cancellation& cancellation);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_MEETING_POINTS_H_
