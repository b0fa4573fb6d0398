// The coordinator's metrics. The code that performs an operation records it in CoordinatorMetrics;
// a scrape fills a page from it. Labels are names of enumerations, methods and queues, never of
// callers; of jobs only those that run and write checkpoints, which slots bound.
//
// Ownership: owns its counts. Thread-safety: all methods; it calls no other object, so any lock may
// be held around it.
#ifndef NIBBLE_SERVER_CONTROLLER_COORDINATOR_METRICS_H_
#define NIBBLE_SERVER_CONTROLLER_COORDINATOR_METRICS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/metrics/metric_book.h"
#include "common/mutex.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/controller/coordinator_table.h"
#include "server/scheduler/plan.h"
#include "server/state/state.h"
#include "server/store/store.h"

namespace nibble {

// Counts of jobs, workers, slots and entities, kept up to date with each change, so that a scrape
// neither reads the state nor takes its locks. Needs a few words of memory per job and worker.
class Census {
 public:
  using Changed = std::vector<std::pair<v1::EntityKind, std::string>>;

  // A job's wait for slots that has ended.
  struct Wait {
    std::string queue;
    double seconds = 0;
  };
  struct Entities {
    int64_t count = 0;
    double mean_bytes = 0;  // of those seen
  };
  struct Counts {
    std::map<std::string, std::map<v1::JobState, int64_t>> jobs;  // by queue, without empty queues
    std::map<std::pair<bool, v1::WorkerMode>, int64_t> workers;   // by present and mode
    std::map<v1::EntityKind, Entities> entities;
    int64_t slots = 0;  // of present workers
    int64_t slots_used = 0;
    // Milliseconds since 1970, by job (UnsavedSince).
    std::map<std::string, int64_t> unsaved_since_ms;
  };

  // Counts everything anew. Waits are measured from here on, on the monotonic clock of `now_ms`.
  void Begin(const State& state, int64_t now_ms);
  // Follows an update that changed these entities. Returns the waits that it ended.
  std::vector<Wait> Update(const State& after, const Changed& changed, int64_t now_ms);
  Counts Now() const;

 private:
  struct JobMark {
    int32_t queue = 0;  // index of queue_names_
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    int32_t slots = 0;
    std::optional<int64_t> queued_ms;  // since when; unset: not queued
    // Whether its spec has checkpoints while it trains; unset: not read yet.
    std::optional<bool> saves;
    std::optional<int64_t> unsaved_since_ms;  // unset: does not run, or does not save
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

  std::optional<Wait> MarkJob(const State& state, const std::string& id, int64_t now_ms)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkUnsaved(const State& state, const v1::JobRecord& job, JobMark& mark)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkWorker(const std::string& name, const v1::WorkerRecord* worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Measure(v1::EntityKind kind, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountEntities(const State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int32_t QueueIndex(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, JobMark> job_marks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, WorkerMark> worker_marks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> queue_names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int32_t, v1::JobState>, int64_t> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<bool, v1::WorkerMode>, int64_t> workers_ ABSL_GUARDED_BY(mutex_);
  std::map<v1::EntityKind, int64_t> entities_ ABSL_GUARDED_BY(mutex_);
  std::map<v1::EntityKind, Sizes> sizes_ ABSL_GUARDED_BY(mutex_);
  int64_t slots_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t slots_used_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Measures the seconds since its construction.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

class CoordinatorMetrics {
 public:
  CoordinatorMetrics() = default;

  // `part` of the start: "store" or "state".
  void Recovered(absl::string_view part, double seconds);
  // The state as loaded at the start.
  void Begin(const State& state, int64_t now_ms) { census_.Begin(state, now_ms); }
  // Each update in order, once it is durable, with the entities it changed.
  void Applied(const State& after, const v1::Update& update, const Census::Changed& changed,
               int64_t now_ms);
  void Planned(double seconds, const scheduler::Decisions& decisions);
  void CopiesMissing(int64_t copies);
  void UploadsFailing(int64_t jobs);
  void LeaseExpired();
  // "delivered", "failed" or "given_up".
  void Posted(absl::string_view result, int64_t events);
  // "done", "failed" or "refused".
  void Audited(absl::string_view outcome);
  void AuditLost();
  // Backups of the store: the newest one when the program started, if any; then each one made.
  void BackupsBegin(int64_t every_ms);  // 0: only on request
  void BackupFound(absl::Time begun, uint64_t bytes);
  void BackupMade(absl::Time begun, uint64_t bytes, double seconds);
  void BackupFailed();
  void Reported(double seconds, const absl::Status& status);
  // `method`: such as "/nibble.v1.Coordinator/ListJobs"; unknown ones count as "other". Durations
  // of streams are not kept.
  void RpcEnded(absl::string_view method, absl::StatusCode code, bool stream, double seconds);

  const MetricBook& book() const { return book_; }
  const Census& census() const { return census_; }
  // Fills in the census.
  void Fill(MetricPage& page) const;

 private:
  Census census_;
  MetricBook book_{CoordinatorRows()};
};

// When the training began that a restart of this job, which has a live attempt, would repeat, in
// milliseconds since 1970: the commit of its newest checkpoint or, if none was committed since an
// attempt ran, the start of the first such attempt.
int64_t UnsavedSince(const State& state, const v1::JobRecord& job);

// Fills in the store's own metrics.
void FillStore(const StoreMetrics& metrics, MetricPage& page);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_COORDINATOR_METRICS_H_
