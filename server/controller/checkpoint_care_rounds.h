// Keeps CareFor of every job up to date in small steps. The cost of a step depends on the number of
// changes, not on the number of jobs ever finished.
//
// A job whose records have changed is examined in one of the next steps. After a change of workers,
// every unfinished job is examined, and every finished job in a lap that takes as many steps as
// needed. A step examines a bounded number of records (or those of one job). No job starves: jobs
// take turns in a circle, and a lap ends before the next one begins.
//
// For finished jobs, at most kMaxRequested copies are requested of each worker at a time: after the
// loss of a worker with the results of very many jobs, the outstanding requests stay few. Jobs
// beyond the bound have their turn in a lap once requests were withdrawn.
//
// Deterministic: the same calls give the same answers. Ownership: values. Thread-safety: none.
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
  static constexpr int64_t kMaxRequested = 64;
  static constexpr int64_t kLooksPerStep = 4000;

  // Has examined nothing yet.
  explicit CheckpointCareRounds(int copies, int64_t looks_per_step = kLooksPerStep)
      : copies_(copies), looks_per_step_(looks_per_step) {}

  // The record of the job, of one of its checkpoints or of their shards was changed or erased.
  void JobChanged(const std::string& job) { changed_.insert(job); }
  void WorkersChanged() { workers_changed_ = true; }

  // Whether there are jobs to examine.
  bool behind() const;
  // Takes a step. `state` includes all reported changes. Returns whether Work() has changed.
  bool Step(const State& state);

  // By worker; unfinished jobs first.
  std::map<std::string, CheckpointWork> Work() const;
  // Jobs for DecideSurplus, since the last call.
  std::set<std::string> TakeSurplus() { return std::exchange(surplus_, {}); }

 private:
  using ByJob = std::map<std::string, std::map<std::string, CheckpointWork>>;  // then by worker

  void TakeWorkersChanged(const State& state);
  std::string TakeChanged();
  // Each returns the number of records that it examined.
  int64_t LookAtWithOrigin(const State& state, const std::string& job);
  int64_t LookAt(const State& state, const std::string& job);
  int64_t Refresh(const State& state, const std::string& job);
  // Requests the work of a finished job, up to the bound.
  void Request(const std::string& job, std::map<std::string, CheckpointWork> work);
  // Withdraws the job's requests; returns their number by worker.
  std::map<std::string, int64_t> Forget(const std::string& job);
  void StepLap(const State& state, int64_t looks);

  const int copies_;
  const int64_t looks_per_step_;
  std::vector<std::string> takers_;
  ByJob unfinished_;
  ByJob finished_;
  std::map<std::string, int64_t> requested_;  // copies in finished_, by worker; without zeros
  std::set<std::string> surplus_;
  bool other_work_ = false;  // in this step

  bool workers_changed_ = true;
  std::set<std::string> changed_;
  std::string last_changed_;  // the last one that had its turn

  // The lap through State::index().finished(): the last job that had its turn; unset: no lap.
  std::optional<std::pair<int64_t, int64_t>> lap_;
  bool lap_again_ = false;  // workers have changed since the lap began
  bool left_out_ = false;   // a job was left out since the lap began
  bool room_ = false;       // some requests were withdrawn since the lap began
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_ROUNDS_H_
