// One random history: a job of two ranks on three workers, whose coordinator is restarted, restored
// from backups, copied and doubled, while workers go away, come back and are lost.
//
// What must stay true after every event:
//   a checkpoint that was committed, and the newest of its job, can be restored: the sealed shards
//   of it or of a later whole checkpoint are on the disks that are left, stored or in their trash;
// and at the end, when everybody can reach everybody again:
//   one coordinator is left, the workers are not taken back and forth, and it knows the newest
//   checkpoint that is stored whole.
// Nobody deletes anything by hand, and no disk is destroyed that has the last copy of a shard of
// the newest checkpoint.
//
// Ownership: owns everything that it simulates. Thread-safety: one thread.
#ifndef NIBBLE_TESTS_HISTORIES_HISTORY_H_
#define NIBBLE_TESTS_HISTORIES_HISTORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/controller/clock.h"
#include "tests/histories/simulated_coordinator.h"
#include "tests/histories/simulated_worker.h"

namespace nibble {

enum class Faults {
  kRestores,  // backups are restored, and workers are lost
  kCopies,    // copies of the store are started unannounced, and one backup is restored twice
  kTwoAlive,  // the old coordinator lives on beside the restored or copied one
  kAll,
};
inline constexpr Faults kAllFaults[] = {Faults::kRestores, Faults::kCopies, Faults::kTwoAlive,
                                        Faults::kAll};
const char* NameOf(Faults faults);

class History {
 public:
  // `root`: an empty directory for the workers' disks.
  History(uint64_t seed, Faults faults, std::string root);
  ~History();

  // What was violated first, with the events that led to it; empty: nothing.
  std::string Run();

 private:
  using Coordinator = std::shared_ptr<SimulatedCoordinator>;
  struct Node {
    std::unique_ptr<SimulatedWorker> worker;  // null while it is away
    std::string directory;                    // empty: destroyed
    int64_t incarnation = 0;
  };

  int Draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  bool Chance(int percent) { return Draw(100) < percent; }
  std::string NewId();
  void Note(const std::string& event) { events_.push_back(event); }

  void Begin();
  void Event();
  void Heal();
  // Each returns at once if it does not apply.
  void ExchangeSome(int percent);
  void TakeCheckpoint();
  void MakeBackup();
  void Restart(const Disk& disk, bool restored, bool old_lives, const char* what);
  void ChangePresence(Node& node);
  void Destroy(Node& node);
  Node MakeNode(int number);
  void Enter(Node& node, int number);

  // The latest step of which every shard is on a disk, other than `without`; -1: none.
  int64_t RestorableStep(const Node* without, const std::string& part = "") const;
  // Empty if the newest checkpoint can be restored.
  std::string CheckNewest();
  std::string CheckEnd();
  std::string Story(const std::string& violation) const;

  std::mt19937_64 random_;
  const Faults faults_;
  const std::string root_;
  ManualClock clock_{1'000'000'000};
  std::vector<Coordinator> coordinators_;  // alive; the last is the present one
  Disk backup_;
  std::vector<Node> nodes_;
  std::string job_;
  int64_t step_ = 0;     // the latest of any attempt
  int64_t newest_ = -1;  // the latest step of a committed checkpoint
  int directories_ = 0;
  std::vector<std::string> events_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_HISTORIES_HISTORY_H_
