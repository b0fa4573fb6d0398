// A rank's side of the link to the process that serves it: its worker daemon, or the launcher of a
// run without a cluster. At the boundary between two steps the rank reads the newest command and
// reports its state; its page names the collective that it is in; its checkpoints are announced
// here (checkpoint_client.h).
//
// Only Connect, WaitForChange, OfferArea, AwaitOutcome and StandBy wait. A daemon that reads too
// slowly misses reports and never delays a step: only the newest report is kept until the socket
// has room. Snapshots are never dropped. Poll fails once the daemon is gone; the ranks then end,
// because no coordinator wants ranks without a daemon.
//
// Ownership: owns the connection and the page. Thread-safety: one thread; see waiting_page.h for
// the page.
#ifndef NIBBLE_WORKER_LINK_RANK_LINK_H_
#define NIBBLE_WORKER_LINK_RANK_LINK_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "worker/link/link_socket.h"
#include "worker/link/waiting_page.h"

namespace nibble {

class RankLink {
 public:
  struct Options {
    std::string address;  // LinkHost::address()
    int32_t rank = 0;
    int64_t attempt = 0;
    std::chrono::milliseconds patience = std::chrono::seconds(30);  // for the first answer
  };
  // Waits until the daemon has accepted the rank; rank 0 also has the command then. InvalidArgument
  // for a malformed address, Unavailable, naming it, if no daemon listens there, DeadlineExceeded
  // if it does not answer; otherwise its refusal, such as Aborted for a stale attempt.
  static absl::StatusOr<std::unique_ptr<RankLink>> Connect(const Options& options);
  // Sends the last report, if the socket has room.
  ~RankLink();
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  // Sends and receives what the socket allows. Unavailable once the daemon is gone, InvalidArgument
  // for a malformed message, and the same at every later call.
  absl::Status Poll();
  // As Poll, after waiting at most `patience` for a message: for paused ranks.
  absl::Status WaitForChange(std::chrono::milliseconds patience);
  // The newest command received; the default, to run, for ranks other than 0.
  const link::v1::Command& command() const { return command_; }

  // The newest request for a trace since the last call, received by Poll().
  std::optional<link::v1::TraceCommand> TakeTrace() { return std::exchange(trace_, std::nullopt); }

  // Replaces an earlier report that could not be sent yet.
  void Report(const link::v1::RankReport& report);

  WaitingPage& page() { return *page_; }

  // The rank's run is over because it lost another rank, for `reason`; its process waits at most
  // `patience` for the order to join a later attempt, which it then acknowledges: the link is of no
  // further use. DeadlineExceeded without an order; the error of Poll once the daemon has closed
  // the link, because it needs the process no longer.
  absl::StatusOr<link::v1::Rejoin> StandBy(const std::string& reason,
                                           std::chrono::milliseconds patience);

  // --- Checkpoints

  // Offers memory, whose descriptor is borrowed, and waits for the answer: the host's error,
  // or that of Poll.
  absl::Status OfferArea(int descriptor);
  // Announces that the area has the state of `step`. The link's error if it has ended.
  absl::Status SendSnapshot(int64_t step, int64_t note_bytes);
  // The outcome of the oldest snapshot without one; nullopt if it is not known yet. A link that has
  // ended is an outcome, too.
  std::optional<link::v1::CheckpointOutcome> TakeOutcome();
  // As TakeOutcome, but waits for it.
  link::v1::CheckpointOutcome AwaitOutcome();

 private:
  RankLink(OwnedDescriptor socket, std::unique_ptr<WaitingPage> page, std::string address)
      : address_(std::move(address)), socket_(std::move(socket)), page_(std::move(page)) {}
  absl::Status Handle(absl::string_view message);
  // Sends and receives until `done`; negative patience: without a limit.
  absl::Status WaitUntil(absl::FunctionRef<bool()> done, std::chrono::milliseconds patience);
  void WaitForSocket(std::chrono::milliseconds patience);

  const std::string address_;
  LinkSocket socket_;
  const std::unique_ptr<WaitingPage> page_;
  link::v1::Command command_;
  bool commanded_ = false;  // a command was received
  std::optional<link::v1::TraceCommand> trace_;
  std::optional<link::v1::Outcome> welcome_;
  std::optional<link::v1::Outcome> area_;
  std::optional<link::v1::Rejoin> rejoin_;
  std::deque<link::v1::CheckpointOutcome> outcomes_;
  absl::Status ended_;  // why the link has ended
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_RANK_LINK_H_
