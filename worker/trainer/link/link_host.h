// The daemon's side of its ranks: takes in what the ranks of one attempt say and hands rank 0 what
// they are to do. What is asked for is kept: a rank 0 that comes later gets it with its greeting.
//
// Ownership: owns the socket and one thread; the destructor hangs up. The socket's directory is the
// caller's. Thread-safety: all methods from any thread; `changed` is called from the host's thread
// with nothing locked.
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
#include "worker/trainer/link/link_message.h"
#include "worker/trainer/link/waiting_page.h"

namespace nibble {

class LinkHost {
 public:
  using Clock = std::function<int64_t()>;  // milliseconds, monotonic

  struct Options {
    std::string address;  // path of the socket to make, at most 107 bytes
    int64_t attempt = 1;  // of the ranks; others are hung up on
    int32_t first_rank = 0;
    int32_t ranks = 1;
    Clock clock;
    std::function<void()> changed;  // something was said; may be null
  };

  // What is known of one rank. In which collective it stands is read from its page now.
  struct Rank {
    bool connected = false;  // now
    int64_t pid = 0;
    RankNews news;                                                  // without its precision
    std::shared_ptr<const std::vector<PrecisionSample>> precision;  // the latest; null: none yet
    int64_t step_at_ms = 0;         // when next_step last grew, or it greeted
    int64_t median_step_ms = 0;     // over the last steps; 0: fewer than three were made
    std::vector<RankNews> samples;  // steps since they were last taken, newest last
  };

  static absl::StatusOr<std::unique_ptr<LinkHost>> Start(Options options);
  ~LinkHost();
  LinkHost(const LinkHost&) = delete;
  LinkHost& operator=(const LinkHost&) = delete;

  const std::string& address() const { return options_.address; }

  // From now on. Telling it again does nothing.
  void Ask(const ControlWord& word);
  // By rank; those that never came are not in it.
  std::map<int32_t, Rank> Ranks() const;
  // As Ranks, and the samples are forgotten.
  std::map<int32_t, Rank> TakeRanks();

 private:
  struct Connection;

  explicit LinkHost(Options options) : options_(std::move(options)) {}
  absl::Status Listen();
  void Serve();
  void Accept(std::vector<std::unique_ptr<Connection>>& connections);
  // False where the connection is to end.
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
