// A rank's side of its daemon. At the boundary between two steps a rank reads the newest command
// and reports what it has done (DaemonLink); during a collective, when it cannot report, its page
// of a shared file names that collective (WaitingPage).
//
// Only DaemonLink's Connect, AwaitWord and WaitForChange wait for the daemon. A daemon that reads
// too slowly misses reports and never delays a step: only the newest report is kept until the
// socket has room. Poll fails once the daemon is gone; the ranks then end, because no coordinator
// wants ranks without a daemon.
//
// By its page the daemon distinguishes the rank that hangs from those that wait for it. Entering
// and leaving a collective cost a few stores and no system call.
//
// Ownership: DaemonLink owns the connection. WaitingPage owns the mapping; the rank's page removes
// its file when it is destroyed, the daemon's does if the rank could not. Thread-safety: DaemonLink
// is for one thread; one thread writes a page, any may read it.
#ifndef NIBBLE_WORKER_TRAINER_LINK_DAEMON_LINK_H_
#define NIBBLE_WORKER_TRAINER_LINK_DAEMON_LINK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/link/link_message.h"

namespace nibble {

// Environment variable in which the daemon passes the address of its socket to its ranks.
inline constexpr char kDaemonLinkVariable[] = "NIBBLE_DAEMON_LINK";

class DaemonLink {
 public:
  struct Options {
    std::string address;  // LinkHost::address()
    int32_t rank = 0;
    int64_t attempt = 0;
  };
  // InvalidArgument for a malformed address, Unavailable if no daemon listens.
  static absl::StatusOr<std::unique_ptr<DaemonLink>> Connect(const Options& options);
  ~DaemonLink();
  DaemonLink(const DaemonLink&) = delete;
  DaemonLink& operator=(const DaemonLink&) = delete;

  // Sends pending bytes, receives, and returns the newest command; kRun before the first one.
  // Unavailable once the daemon is gone; InvalidArgument for a malformed message.
  absl::StatusOr<ControlWord> Poll();
  // As Poll, after waiting at most `patience` for a command: for paused ranks.
  absl::StatusOr<ControlWord> WaitForChange(std::chrono::milliseconds patience);

  // Waits for the daemon's first command. DeadlineExceeded if none comes within `patience`;
  // otherwise as Poll.
  absl::Status AwaitWord(std::chrono::milliseconds patience);

  // Replaces an earlier report that could not be sent yet.
  void Report(const RankNews& news);

 private:
  explicit DaemonLink(int socket) : socket_(socket) {}
  absl::Status Send();
  absl::Status Receive();

  const int socket_;
  std::string sending_;  // the rest of a frame that is partly sent
  std::string next_;     // the newest report, framed
  FrameReader reader_;
  ControlWord word_;
  bool heard_ = false;  // a command was received
  absl::Status gone_;
};

class WaitingPage {
 public:
  // The page of a rank is beside the link's socket.
  static std::string PathOf(const std::string& link_address, int32_t rank);

  // For the rank: makes a new file. Unavailable, naming the path.
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Create(const std::string& path);
  // For the daemon. NotFound if the rank has made none.
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Open(const std::string& path);
  ~WaitingPage();
  WaitingPage(const WaitingPage&) = delete;
  WaitingPage& operator=(const WaitingPage&) = delete;

  // `operation`: the collective's name, cut to 31 bytes. `number`: above 0.
  void Enter(const char* operation, uint64_t number);
  void Leave();
  // "AllGather #12"; empty: in no collective.
  std::string Read() const;

 private:
  struct Page;
  WaitingPage(std::string path, Page* page) : path_(std::move(path)), page_(page) {}
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Map(const std::string& path, int flags);

  const std::string path_;
  Page* const page_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_DAEMON_LINK_H_
