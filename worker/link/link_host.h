// The daemon's side of the link to its ranks: receives the reports of one attempt's ranks, sends
// the newest command to rank 0, also if that connects later, and passes the checkpoint part of the
// link to a SnapshotSink. The launcher of a run without a cluster serves its ranks in the same way.
//
// Ownership: owns the socket and one thread; the destructor closes all connections. Borrows the
// sink, which must outlive it. The caller owns the socket's directory. Thread-safety: all methods
// from any thread; `changed` and the sink are called from the host's thread with no lock taken.
#ifndef NIBBLE_WORKER_LINK_LINK_HOST_H_
#define NIBBLE_WORKER_LINK_LINK_HOST_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "worker/checkpoint/snapshot_sink.h"
#include "worker/link/link_socket.h"
#include "worker/link/waiting_page.h"

namespace nibble {

class LinkHost {
 public:
  using Clock = std::function<int64_t()>;  // milliseconds, monotonic
  using Precision = google::protobuf::RepeatedPtrField<link::v1::PrecisionSample>;

  struct Options {
    std::string address;  // path of the socket to make, at most 107 bytes
    int64_t attempt = 1;  // of the ranks; others are refused
    int32_t first_rank = 0;
    int32_t ranks = 1;
    Clock clock;
    std::function<void()> changed;      // a rank has reported; may be null
    SnapshotSink* snapshots = nullptr;  // null: memory for checkpoints is refused
  };

  // The state of one rank.
  struct Rank {
    bool connected = false;  // now
    int64_t pid = 0;
    // Its run is over because it lost another rank, for this reason, and its process waits for
    // Rejoin while it is connected.
    std::optional<std::string> standing_by;
    link::v1::RankReport report;  // the newest, without its precision
    std::string waiting_in;       // the collective, read from its page at the time of the call
    bool gives_up = false;        // it has seen the request of AskToGiveUp; read as waiting_in
    std::shared_ptr<const Precision> precision;  // the latest; null: none yet
    int64_t step_at_ms = 0;                      // when next_step last grew, or it connected
    int64_t median_step_ms = 0;                  // of the last steps; 0: fewer than three
    // Steps since the last TakeRanks as the coordinator receives them, newest last.
    std::vector<v1::StepSample> samples;
  };

  static absl::StatusOr<std::unique_ptr<LinkHost>> Start(Options options);
  ~LinkHost();
  LinkHost(const LinkHost&) = delete;
  LinkHost& operator=(const LinkHost&) = delete;

  const std::string& address() const { return options_.address; }

  // Sets the command of rank 0. Repeating it has no effect.
  void SetCommand(const link::v1::Command& command) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the request to every rank that is connected now.
  void Trace(const link::v1::TraceCommand& trace) ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks the rank to give up its run as if it had lost another rank, while it may be waiting in a
  // collective. For good. Without effect if the rank has never connected.
  void AskToGiveUp(int32_t rank) ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes the socket and every connection except those of ranks that stand by; the sink is not
  // used any more. Returns when that is done. For a host that outlives its attempt.
  void Retire() ABSL_LOCKS_EXCLUDED(mutex_);
  // Orders a rank that stands by to join a later attempt, and waits until it has acknowledged that.
  // NotFound unless it stands by, Unavailable if its connection ends, DeadlineExceeded if it does
  // not answer: it may still join.
  absl::Status Rejoin(int32_t rank, const link::v1::Rejoin& order,
                      std::chrono::milliseconds patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // By rank; without those that never connected.
  std::map<int32_t, Rank> Ranks() const ABSL_LOCKS_EXCLUDED(mutex_);
  // As Ranks, and clears the samples.
  std::map<int32_t, Rank> TakeRanks() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection;
  class Replies;

  explicit LinkHost(Options options);
  absl::Status Listen();
  void Serve();
  // False if the process or the machine has no descriptor or memory for it now.
  bool Accept();
  // These return an error if the connection must be closed.
  absl::Status Handle(Connection& connection, absl::string_view bytes);
  absl::Status HandleHello(Connection& connection, const link::v1::Hello& hello);
  absl::Status HandleReport(int32_t rank, link::v1::RankReport report);
  absl::Status HandleArea(Connection& connection);
  absl::Status HandleStandBy(Connection& connection, const std::string& reason);
  absl::Status HandleRejoining(const Connection& connection);
  bool RetireIfAsked();
  absl::Status Send(Connection& connection);
  int64_t TraceNumber() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Admit(const link::v1::Hello& hello, std::unique_ptr<WaitingPage> page);
  std::map<int32_t, Rank> RanksNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(Connection& connection);

  const Options options_;
  OwnedDescriptor listener_;
  // Shared with the sink's callbacks, which may outlive the host.
  std::shared_ptr<Replies> replies_;
  // Used by the thread only.
  std::vector<std::unique_ptr<Connection>> connections_;
  int64_t last_id_ = 0;  // of a connection
  std::thread thread_;

  mutable Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t command_number_ ABSL_GUARDED_BY(mutex_) = 0;  // of `command_`, grows
  link::v1::Command command_ ABSL_GUARDED_BY(mutex_);
  link::v1::TraceCommand trace_ ABSL_GUARDED_BY(mutex_);
  bool retiring_ ABSL_GUARDED_BY(mutex_) = false;
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
  // Orders of Rejoin to be sent, and the ranks that have acknowledged one.
  std::map<int32_t, link::v1::Rejoin> rejoins_ ABSL_GUARDED_BY(mutex_);
  std::set<int32_t> rejoining_ ABSL_GUARDED_BY(mutex_);
  CondVar changed_;  // retired_, rejoining_, or a connection of ranks_ has ended
  std::map<int32_t, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::unique_ptr<WaitingPage>> pages_ ABSL_GUARDED_BY(mutex_);
  // The last steps of each rank, oldest first.
  std::map<int32_t, std::vector<int64_t>> step_ms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_LINK_HOST_H_
