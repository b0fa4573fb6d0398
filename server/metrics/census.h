// How much there is of what the coordinator knows, counted as it changes, so that a scrape reads
// nothing of the state and holds none of its locks.
//
// Costs a few words for each job and worker. Ownership: owns what it counts. Thread-safety: all
// methods; it calls nobody, so any lock may be held around it.
#ifndef NIBBLE_SERVER_METRICS_CENSUS_H_
#define NIBBLE_SERVER_METRICS_CENSUS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/entities.pb.h"
#include "server/state/state.h"

namespace nibble {

class Census {
 public:
  using Changed = std::vector<std::pair<v1::EntityKind, std::string>>;

  // A job's wait for slots that is over.
  struct Wait {
    std::string queue;
    double seconds = 0;
  };
  struct Entities {
    int64_t count = 0;
    double mean_bytes = 0;  // of those seen
  };
  struct Counts {
    std::map<std::string, std::map<v1::JobState, int64_t>> jobs;  // by queue, where it has any
    std::map<std::pair<bool, v1::WorkerMode>, int64_t> workers;   // by present and mode
    std::map<v1::EntityKind, Entities> entities;
    int64_t slots = 0;  // of workers that are present
    int64_t slots_used = 0;
  };

  // Everything anew. Waits are measured from here on, on the clock of `now_ms`, which never goes
  // back.
  void Begin(const State& state, int64_t now_ms);
  // After an update that changed these; the waits that it ended.
  std::vector<Wait> Update(const State& after, const Changed& changed, int64_t now_ms);
  Counts Now() const;

 private:
  struct JobMark {
    int32_t queue = 0;  // index of queue_names_
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    int32_t slots = 0;
    std::optional<int64_t> queued_ms;  // since when; unset: it is not
  };
  struct WorkerMark {
    bool present = false;
    v1::WorkerMode mode = v1::WORKER_MODE_UNSPECIFIED;
    int32_t slots = 0;
  };
  struct Sizes {
    int64_t seen = 0;
    double bytes = 0;
  };

  // With mutex_ held.
  std::optional<Wait> MarkJob(const std::string& id, const v1::JobRecord* job, int64_t now_ms);
  void MarkWorker(const std::string& name, const v1::WorkerRecord* worker);
  void Measure(v1::EntityKind kind, int64_t bytes);
  void CountEntities(const State& state);
  int32_t QueueIndex(const std::string& name);

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  absl::flat_hash_map<std::string, JobMark> job_marks_;
  absl::flat_hash_map<std::string, WorkerMark> worker_marks_;
  std::vector<std::string> queue_names_;
  std::map<std::pair<int32_t, v1::JobState>, int64_t> jobs_;
  std::map<std::pair<bool, v1::WorkerMode>, int64_t> workers_;
  std::map<v1::EntityKind, int64_t> entities_;
  std::map<v1::EntityKind, Sizes> sizes_;
  int64_t slots_ = 0;
  int64_t slots_used_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_CENSUS_H_
