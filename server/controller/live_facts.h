// What the coordinator knows for the moment and never stores: who was heard from, how far ranks
// are, their sampled steps, and why jobs wait. After a restart it is learnt again from the workers.
//
// Ownership: owns what it holds. Thread-safety: all methods; it calls nobody, so any lock may be
// held around it.
#ifndef NIBBLE_SERVER_CONTROLLER_LIVE_FACTS_H_
#define NIBBLE_SERVER_CONTROLLER_LIVE_FACTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "proto/nibble/v1/metrics.pb.h"
#include "server/state/decide.h"
#include "server/state/leases.h"
#include "server/state/state.h"

namespace nibble {

class LiveFacts {
 public:
  // Of one job; every second sample is dropped where there are more.
  static constexpr size_t kMaxSamples = 4096;

  explicit LiveFacts(int64_t lease_ms) : leases_(lease_ms) {}

  void Restart(const State& state, int64_t now_ms);
  void Hear(const std::string& worker, int64_t incarnation, int64_t now_ms);
  // Those whose lease has run out, which are forgotten.
  std::vector<Leases::Lease> TakeExpired(int64_t now_ms);
  std::optional<int64_t> LastHeard(const std::string& worker) const;

  // What ranks of a job's living attempt say. Samples of steps that are made again replace those of
  // the attempt before. Returns the samples that are new.
  std::vector<v1::StepSample> Report(const std::string& job, int64_t attempt, int64_t next_step,
                                     const std::vector<v1::StepSample>& samples);
  // Rank 0 of the attempt has said how far it is: since Restart nobody knew.
  void HearRank0(const std::string& job, int64_t attempt);
  LiveProgress ProgressOf(const std::string& job) const;
  // Of the newest sampled step of the job; 0: not known.
  double StepSecondsOf(const std::string& job) const;
  // By step, from `from_step` on. Shared: nobody who reports waits while they are copied.
  using Sample = std::shared_ptr<const v1::StepSample>;
  std::vector<Sample> SamplesOf(const std::string& job, int64_t from_step) const;
  void Forget(const std::string& job);

  // Why each of them waits, in the scheduler's words; of others nothing is known.
  void SetPending(std::map<std::string, std::string> reasons);
  std::string PendingOf(const std::string& job) const;

 private:
  struct Progress {
    LiveProgress live;
    int64_t seen = 0;            // samples that came in, count
    int64_t stride = 1;          // of them one is kept
    std::deque<Sample> samples;  // the newest is always last, kept or not
    bool rewinds = false;        // the next sample is the first of its attempt
    bool last_is_extra = false;  // the last is there only because it is the newest
  };

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Leases leases_;
  int64_t none_expires_before_ms_ = 0;
  std::map<std::string, Progress> progress_;
  std::map<std::string, int64_t> unheard_;  // attempts since Restart, by job
  std::map<std::string, std::string> pending_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_LIVE_FACTS_H_
