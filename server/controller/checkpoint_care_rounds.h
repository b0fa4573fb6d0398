// CareFor every job, kept up to date in small steps: what a step costs depends on what has changed,
// and not on how many jobs have ever been finished.
//
// A job whose records have changed is looked at in one of the next steps. Where workers have, every
// unfinished job is, and every finished one in a lap that takes as many steps as it needs. A step
// makes a bounded number of looks (or those of one job). Nobody waits for ever: jobs take their
// turns in a circle, and a lap is finished before the next one begins.
//
// Of finished jobs a worker is asked for kMaxAsked copies at a time: after the loss of a worker
// with the results of very many, what is asked for stays small. Those left out have their turn in a
// lap once there is room.
//
// Pure: the same calls give the same answers. Ownership: values. Thread-safety: none of its own.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_ROUNDS_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_ROUNDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/controller/checkpoint_care.h"
#include "server/state/state.h"

namespace nibble {

class CheckpointCareRounds {
 public:
  static constexpr int64_t kMaxAsked = 64;
  static constexpr int64_t kLooksPerStep = 4000;

  // Nothing has been looked at.
  explicit CheckpointCareRounds(int copies, int64_t looks_per_step = kLooksPerStep)
      : copies_(copies), looks_per_step_(looks_per_step) {}

  // Its record, or one of a checkpoint or shard of it, is another, or gone.
  void JobChanged(const std::string& job) { changed_.insert(job); }
  void WorkersChanged() { workers_changed_ = true; }

  // Whether there is something to look at.
  bool behind() const;
  // Takes a step. The state has all that was said to have changed. True where work() is another.
  bool Step(const State& state);

  // By worker; that of unfinished jobs first.
  std::map<std::string, CheckpointWork> Work() const;
  // Jobs for DecideSurplus, since the last call.
  std::set<std::string> TakeSurplus() { return std::exchange(surplus_, {}); }

 private:
  using ByJob = std::map<std::string, std::map<std::string, CheckpointWork>>;  // then by worker

  void TakeWorkersChanged(const State& state);
  std::string TakeChanged();
  // Each returns the looks that it cost.
  int64_t LookAtWithOrigin(const State& state, const std::string& job);
  int64_t LookAt(const State& state, const std::string& job);
  int64_t Refresh(const State& state, const std::string& job);
  // What is asked for of a finished job, less what is beyond the bound.
  void Ask(const std::string& job, std::map<std::string, CheckpointWork> work);
  // By worker, what was asked for of it.
  std::map<std::string, int64_t> Forget(const std::string& job);
  void StepLap(const State& state, int64_t looks);

  const int copies_;
  const int64_t looks_per_step_;
  std::vector<std::string> takers_;
  ByJob unfinished_;
  ByJob finished_;
  std::map<std::string, int64_t> asked_;  // copies in finished_, by worker; none is 0
  std::set<std::string> surplus_;
  bool other_work_ = false;  // in this step

  bool workers_changed_ = true;
  std::set<std::string> changed_;
  std::string last_changed_;  // that had its turn

  // The lap through State::index().finished(): the last one that had its turn; unset: none is run.
  std::optional<std::pair<int64_t, int64_t>> lap_;
  bool lap_again_ = false;  // workers have changed since it began
  bool left_out_ = false;   // somebody was, since it began
  bool room_ = false;       // somebody asked for less, since it began
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_ROUNDS_H_
