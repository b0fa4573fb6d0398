// What the coordinator counts of itself. Those who do something say so here; a scrape fills a page
// with it. Labels are names of enumerations, methods and queues alone, never of jobs or callers.
//
// Ownership: owns counts. Thread-safety: all methods; it calls nobody, so any lock may be held
// around it.
#ifndef NIBBLE_SERVER_METRICS_COORDINATOR_METRICS_H_
#define NIBBLE_SERVER_METRICS_COORDINATOR_METRICS_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/metrics/metric_book.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/metrics/census.h"
#include "server/metrics/coordinator_table.h"
#include "server/scheduler/decisions.h"
#include "server/state/state.h"
#include "server/store/store_metrics.h"

namespace nibble {

// Seconds since it was made.
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

  // A part of the start: "store", "state".
  void Recovered(absl::string_view part, double seconds);
  // What is there once the state is loaded.
  void Begin(const State& state, int64_t now_ms) { census_.Begin(state, now_ms); }
  // Updates in order, each once it is durable, with what it changed.
  void Applied(const State& after, const v1::Update& update, const Census::Changed& changed,
               int64_t now_ms);
  void Planned(double seconds, const scheduler::Decisions& decisions);
  void LeaseExpired();
  // "delivered", "failed" or "given_up".
  void Posted(absl::string_view result, int64_t events);
  void Reported(double seconds, const absl::Status& status);
  // `method`: "/nibble.v1.Coordinator/ListJobs", any others count as "other". A stream's seconds
  // are not kept.
  void RpcEnded(absl::string_view method, absl::StatusCode code, bool stream, double seconds);

  const MetricBook& book() const { return book_; }
  const Census& census() const { return census_; }
  // What the census has.
  void Fill(MetricPage& page) const;

 private:
  Census census_;
  MetricBook book_{CoordinatorRows()};
};

// What a store says of itself.
void FillStore(const StoreMetrics& metrics, MetricPage& page);

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_COORDINATOR_METRICS_H_
