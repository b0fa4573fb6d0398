// What a daemon counts of itself and shows of its gangs, and how it stands with its coordinator.
// Those who do something say so here; a scrape waits for none of them.
//
// Ownership: owns counts and the latest figures. Thread-safety: all methods; it calls nobody but
// the clock, so any lock may be held around it.
#ifndef NIBBLE_WORKER_METRICS_WORKER_METRICS_H_
#define NIBBLE_WORKER_METRICS_WORKER_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics/metric_book.h"
#include "worker/metrics/gang_figures.h"
#include "worker/metrics/worker_table.h"

namespace nibble {

class WorkerMetrics {
 public:
  struct Options {
    FigureLimits figures;
    int32_t slots = 0;
    std::string version;
    std::function<double()> clock;  // seconds, monotonic
  };
  explicit WorkerMetrics(Options options);

  // The gangs as they are now, every one: they take the place of those before.
  void Publish(std::vector<GangFigures> gangs);

  // A report is made; numbers grow from 1 within a stream. An answer has come; a stream has ended.
  void Reported(int64_t number);
  void Answered(int64_t answered, int64_t lease_ms);
  void StreamLost(const absl::Status& status);
  // A copy of a shard from another worker is here, or could not be had.
  void Fetched(double seconds, int64_t bytes, const absl::Status& status);

  // Whether the coordinator counts on this worker: it has answered on the open stream, or was heard
  // within the lease. Unavailable, with why not.
  absl::Status Ready() const;
  // The text that Prometheus reads.
  std::string Page() const;

 private:
  static constexpr size_t kMaxPending = 1024;  // reports without an answer; of more the oldest go

  const Options options_;
  MetricBook book_{WorkerRows()};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<GangFigures> gangs_;
  std::deque<std::pair<int64_t, double>> pending_;  // number and time of reports
  bool connected_ = false;
  double heard_ = -1;  // below 0: never
  double lease_seconds_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_METRICS_WORKER_METRICS_H_
