// Takes alerts from a Prometheus and records those about jobs, whose events are then posted like
// all others. AlertBook decides; this adds the lock, the clock and the store.
//
// Ownership: borrows the controller, which outlives it. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_NOTIFY_ALERT_INTAKE_H_
#define NIBBLE_SERVER_NOTIFY_ALERT_INTAKE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/controller/controller.h"
#include "server/notify/alert_book.h"

namespace nibble {

class AlertIntake {
 public:
  // `patience`: how long Take waits for the store.
  explicit AlertIntake(Controller& controller,
                       std::chrono::milliseconds patience = std::chrono::seconds(5));

  // Takes the body of a POST /api/v2/alerts and returns once what it changes is durable. The
  // errors of ParseAlerts and AlertBook::Take; Unavailable: two others wait for the store, or it
  // does not answer in time. A Prometheus repeats what was not taken.
  absl::Status Take(const std::string& body);

  // Ends alerts that are no longer repeated. Called with each tick of the coordinator.
  void Tick();

 private:
  static constexpr int kMostWaiting = 2;  // so that metrics and probes are answered meanwhile

  Controller& controller_;
  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  AlertBook book_ ABSL_GUARDED_BY(mutex_);
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_tick_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // monotonic
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_ALERT_INTAKE_H_
