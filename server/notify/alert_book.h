// Alerts as a Prometheus sends them to an Alertmanager, and which of them fire about which job.
// This part of notifications has no network, disk, clock or thread.
//
// A Prometheus repeats an alert while it fires, each time with the time until which it is valid,
// and for a while after its end. The instances of one rule about one job, such as of several
// layers, are one alert, since a page about forty layers is read by nobody: it fires with the
// first and is resolved with the last. An instance also ends when it is not repeated in time,
// because its Prometheus is gone. What fires is in the state; the book remembers the instances,
// and after a restart gives those of the alerts in the state `kAdoptedMs` to be repeated.
//
// Thread-safety: none; ParseAlerts is pure.
#ifndef NIBBLE_SERVER_NOTIFY_ALERT_BOOK_H_
#define NIBBLE_SERVER_NOTIFY_ALERT_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/state.h"

namespace nibble {

inline constexpr size_t kMaxAlertBodyBytes = size_t{1} << 20;
inline constexpr size_t kMaxAlertsAtOnce = 256;
inline constexpr size_t kMaxAlertLabels = 64;
inline constexpr size_t kMaxAlertInstances = 20'000;  // of all jobs, that fire

// One instance of an alert.
struct ReceivedAlert {
  std::string job;            // its label
  std::string cluster;        // its label; empty: none
  v1::JobAlert alert;         // without ends_unix_ms
  uint64_t instance = 0;      // of all of its labels
  int64_t until_unix_ms = 0;  // it fires until then, unless it is repeated; 0: not given
};

// A body of POST /api/v2/alerts: a JSON array of {labels, annotations, startsAt, endsAt}. Alerts
// without the labels `alertname` and `job` are left out. InvalidArgument, naming the alert, the
// field and what is allowed.
absl::StatusOr<std::vector<ReceivedAlert>> ParseAlerts(std::string_view body);

class AlertBook {
 public:
  static constexpr int64_t kAdoptedMs = 300'000;
  static constexpr int64_t kDefaultMs = 300'000;  // of an instance without an end

  // Begins with the alerts that fire in the state.
  AlertBook(const State& state, int64_t now_unix_ms);

  // Alerts about other clusters and unknown jobs are left out. ResourceExhausted: more than
  // kMaxAlertInstances would fire; those before the first that has no room are taken.
  absl::Status Take(const std::vector<ReceivedAlert>& received, const State& state,
                    int64_t now_unix_ms);

  // What differs between the state and the book, to be stored; the same again until it is.
  std::vector<v1::AlertChanged> Changes(const State& state, int64_t now_unix_ms);

 private:
  struct Alert {
    v1::JobAlert first;                     // as it began to fire
    std::map<uint64_t, int64_t> instances;  // until when each fires, by instance
    bool expired = false;                   // the last one ended because it was not repeated
  };
  using Key = std::pair<std::string, std::string>;  // job, name

  std::map<Key, Alert> alerts_;
  size_t instances_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_ALERT_BOOK_H_
