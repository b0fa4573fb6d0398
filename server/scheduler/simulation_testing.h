// A simulated cluster: jobs arrive, run, checkpoint, fail and finish, workers are lost and return,
// and the scheduler plans after each event. The simulation has its own time; the events are a
// function of the seed.
//
// Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_SIMULATION_TESTING_H_
#define NIBBLE_SERVER_SCHEDULER_SIMULATION_TESTING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "server/scheduler/plan.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

struct SimulationOptions {
  int jobs = 60;                  // submitted over time
  int64_t arrival_ms = 40'000;    // between two, on average
  int64_t work_ms = 1'200'000;    // of a job at its smallest size, at most
  int failure_percent = 15;       // of jobs that fail once while they run
  int64_t outage_ms = 3'000'000;  // between two losses of a worker, on average
  bool known_ends = true;         // the scheduler knows when jobs end
};

struct JobHistory {
  int64_t submitted_ms = 0;
  int64_t finished_ms = 0;  // 0: not yet
  int starts = 0;
  int preempted_for_others = 0;
  int grows = 0;
  std::set<std::string> preempted_for;
};

class Simulation {
 public:
  // `cluster`: workers and queues; its jobs are ignored. `make_job` gives the n-th job.
  Simulation(Snapshot cluster, std::function<Job(int, std::mt19937_64&)> make_job,
             const SimulationOptions& options, uint64_t seed);

  // Runs until every job has finished, or `limit_ms` has passed. Each plan is checked against the
  // rules of invariants_testing.h; returns the first broken rule, or "".
  std::string Run(int64_t limit_ms);

  const std::map<std::string, JobHistory>& history() const { return history_; }

 private:
  enum class Kind { kSubmit, kUp, kEnd, kFail, kLeft, kResized, kLost, kBack, kLook };
  struct Event {
    Kind kind;
    std::string name = {};
    int64_t epoch = 0;  // of the job: events of earlier epochs are ignored
  };

  int64_t Around(int64_t mean_ms);
  void At(int64_t time_ms, Event event) { events_.emplace(time_ms, std::move(event)); }
  void Happen(const Event& event);
  void Submit();
  void Lose();
  void Record(const Decision& decision);
  std::string PlanOnce();
  // Adds the work done up to now; the job continues to run.
  void Account(Job& job);
  void RunOn(Job& job);
  void Requeue(Job& job, JobPhase phase);
  void Finish(const std::string& name);

  Snapshot snapshot_;
  const std::function<Job(int, std::mt19937_64&)> make_job_;
  const SimulationOptions options_;
  std::mt19937_64 random_;
  int64_t now_ms_ = 0;
  int submitted_ = 0;
  std::multimap<int64_t, Event> events_;
  struct Progress {
    int64_t left = 0;  // slot-milliseconds
    int64_t since_ms = 0;
    int64_t epoch = 0;
    bool fails = false;
  };
  std::map<std::string, Progress> progress_;
  std::map<std::string, JobHistory> history_;
};

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_SIMULATION_TESTING_H_
