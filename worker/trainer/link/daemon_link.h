// A rank's side of its daemon: what it asks for is read, and what the rank does is said, at the
// boundary between two steps. Nothing here waits for the daemon but Connect and WaitForChange.
//
// A daemon that reads too slowly misses news, never delays a step: only the newest is kept until
// the socket has room. A daemon that is gone is an error of Poll: the ranks of a daemon that is
// gone have no coordinator that wants them, and end.
//
// Ownership: owns the connection. Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LINK_DAEMON_LINK_H_
#define NIBBLE_WORKER_TRAINER_LINK_DAEMON_LINK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/link/link_message.h"

namespace nibble {

// The daemon leaves the address of its socket here for the ranks that it starts.
inline constexpr char kDaemonLinkVariable[] = "NIBBLE_DAEMON_LINK";

class DaemonLink {
 public:
  struct Options {
    std::string address;  // LinkHost::address()
    int32_t rank = 0;
    int64_t attempt = 0;
  };
  // InvalidArgument for an address that is none, Unavailable where nobody listens.
  static absl::StatusOr<std::unique_ptr<DaemonLink>> Connect(const Options& options);
  ~DaemonLink();
  DaemonLink(const DaemonLink&) = delete;
  DaemonLink& operator=(const DaemonLink&) = delete;

  // Sends what is left to send, takes in what has come, and says what is asked for now: the newest
  // word, at first to run. Unavailable once the daemon is gone; InvalidArgument for what is no
  // message.
  absl::StatusOr<ControlWord> Poll();
  // As Poll, after at most `patience`, sooner where a word comes: for ranks that stand.
  absl::StatusOr<ControlWord> WaitForChange(std::chrono::milliseconds patience);

  // Until the daemon has said for the first time what it asks for. DeadlineExceeded where it does
  // not within `patience`; otherwise as Poll.
  absl::Status AwaitWord(std::chrono::milliseconds patience);

  // Takes the place of news that could not be sent yet.
  void Report(const RankNews& news);

 private:
  explicit DaemonLink(int socket) : socket_(socket) {}
  absl::Status Send();
  absl::Status Receive();

  const int socket_;
  std::string sending_;  // what is left of a frame that was begun
  std::string next_;     // the newest news, framed
  FrameReader reader_;
  ControlWord word_;
  bool heard_ = false;  // a word has come
  absl::Status gone_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_DAEMON_LINK_H_
