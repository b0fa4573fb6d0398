// The daemon's side of its ranks: receives the reports of one attempt's ranks and sends the newest
// command to rank 0, also if that connects later.
//
// Ownership: owns the socket and one thread; the destructor closes all connections. The caller owns
// the socket's directory. Thread-safety: all methods from any thread; `changed` is called from the
// host's thread with no lock taken.
#ifndef NIBBLE_WORKER_TRAINER_LINK_LINK_HOST_H_
#define NIBBLE_WORKER_TRAINER_LINK_LINK_HOST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/link/daemon_link.h"
#include "worker/trainer/link/link_message.h"

namespace nibble {

class LinkHost {
 public:
  using Clock = std::function<int64_t()>;  // milliseconds, monotonic

  struct Options {
    std::string address;  // path of the socket to make, at most 107 bytes
    int64_t attempt = 1;  // of the ranks; others are disconnected
    int32_t first_rank = 0;
    int32_t ranks = 1;
    Clock clock;
    std::function<void()> changed;  // a rank has reported; may be null
  };

  // The state of one rank. `news.waiting_in` is read from its page at the time of the call.
  struct Rank {
    bool connected = false;  // now
    int64_t pid = 0;
    RankNews news;                                                  // without its precision
    std::shared_ptr<const std::vector<PrecisionSample>> precision;  // the latest; null: none yet
    int64_t step_at_ms = 0;         // when next_step last grew, or it connected
    int64_t median_step_ms = 0;     // of the last steps; 0: fewer than three
    std::vector<RankNews> samples;  // steps since the last TakeRanks, newest last
  };

  static absl::StatusOr<std::unique_ptr<LinkHost>> Start(Options options);
  ~LinkHost();
  LinkHost(const LinkHost&) = delete;
  LinkHost& operator=(const LinkHost&) = delete;

  const std::string& address() const { return options_.address; }

  // Sets the command. Repeating it has no effect.
  void Ask(const ControlWord& word);
  // By rank; without those that never connected.
  std::map<int32_t, Rank> Ranks() const;
  // As Ranks, and clears the samples.
  std::map<int32_t, Rank> TakeRanks();

 private:
  struct Connection;

  explicit LinkHost(Options options) : options_(std::move(options)) {}
  absl::Status Listen();
  void Serve();
  void Accept(std::vector<std::unique_ptr<Connection>>& connections);
  // These return false if the connection must be closed.
  bool Hear(Connection& connection);
  bool Take(Connection& connection, const std::string& message);
  bool Tell(Connection& connection);
  std::map<int32_t, Rank> RanksNow() const;  // with mutex_ held
  void Hang(Connection& connection);

  const Options options_;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd
  std::thread thread_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool closing_ = false;
  int64_t word_number_ = 0;  // of `word_`, grows
  ControlWord word_;
  std::map<int32_t, Rank> ranks_;
  std::map<int32_t, std::unique_ptr<WaitingPage>> pages_;
  std::map<int32_t, std::vector<int64_t>> step_ms_;  // the last steps of each rank, oldest first
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_LINK_HOST_H_
