// A daemon's metrics: the figures of its gangs and cards at one moment (GangFigures, CardFigures),
// its own counts and its connection to the coordinator (WorkerMetrics), and its plain HTTP:
//
//   /metrics   for Prometheus; see docs/reference/metrics.md
//   /healthz   200 while the process lives
//   /readyz    200 while the coordinator counts on this worker, otherwise 503 and the reason
//
// Ownership: figures are values; WorkerMetrics owns counts and the latest figures.
// Thread-safety: all methods of WorkerMetrics from any thread. It calls only the clock, so any lock
// may be held around it, and a scrape waits for no caller. The functions are pure.
#ifndef NIBBLE_WORKER_METRICS_WORKER_METRICS_H_
#define NIBBLE_WORKER_METRICS_WORKER_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/metrics/metric_book.h"
#include "common/metrics/program_table.h"
#include "common/mutex.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "worker/metrics/worker_table.h"

namespace nibble {

class HttpExposer;

struct RankFigures {
  using Precision = google::protobuf::RepeatedPtrField<link::v1::PrecisionSample>;

  int32_t rank = 0;
  std::string phase;  // "running", "paused", …
  bool ended = false;
  bool hung = false;
  link::v1::RankReport report;
  int64_t log_bytes = 0;
  double since_step_seconds = 0;
  double median_step_seconds = 0;              // 0: unknown
  std::shared_ptr<const Precision> precision;  // null: none
};

struct GangFigures {
  std::string job;
  int64_t attempt = 0;
  int32_t world = 0;
  int64_t planned_steps = 0;       // 0: unknown
  double flops_per_token = 0;      // of training; 0: unknown
  std::vector<RankFigures> ranks;  // those on this worker
};

// A figure of a card: a row of WorkerTable whose first label is the card.
struct CardFigure {
  const MetricSpec* row = nullptr;
  std::string label;  // the row's second label; empty: it has none
  double value = 0;
};

struct CardFigures {
  std::string card;
  std::vector<CardFigure> figures;
};

struct FigureLimits {
  // Layers whose precision is shown, evenly spread from the first to the last; 0: all.
  size_t precision_layers = 16;
  double peak_flops = 0;  // of a slot, FLOP/s; 0: unknown
};

void FillGangs(absl::Span<const GangFigures> gangs, const FigureLimits& limits, MetricPage& page);
void FillCards(absl::Span<const CardFigures> cards, MetricPage& page);

// At most `most` of the indices [0, count), ascending and evenly spread, including the first and
// the last; all if `most` is 0.
std::vector<size_t> EvenlySpread(size_t count, size_t most);

class WorkerMetrics {
 public:
  struct Options {
    FigureLimits figures;
    int32_t slots = 0;
    std::string version;
    std::string data_directory;  // whose disk is measured; empty: none
    CertificateTimes certificates;
    std::function<double()> clock;  // seconds, monotonic
    // Figures of cards that are older than this are not shown: their driver hangs.
    double card_seconds = 30;
  };
  explicit WorkerMetrics(Options options);

  // Replaces the gangs by the present ones.
  void Publish(std::vector<GangFigures> gangs);
  // Replaces the figures of the cards by the present ones.
  void PublishCards(std::vector<CardFigures> cards);

  // Space that deleted shards take.
  void PublishTrash(int64_t bytes);
  // A report was sent, numbered from 1 within a stream; an answer was received; a stream has ended.
  void Reported(int64_t number);
  void Answered(int64_t answered, int64_t lease_ms);
  void StreamLost(const absl::Status& status);
  // The fetch of a replica has ended.
  void Fetched(double seconds, int64_t bytes, const absl::Status& status);

  // Whether the coordinator counts on this worker: it has answered on the open stream, or within
  // the lease. Unavailable, with the reason, if not.
  absl::Status Ready() const;
  // In Prometheus' text format.
  std::string Page() const;

 private:
  static constexpr size_t kMaxPending =
      1024;  // reports without an answer; beyond it the oldest are dropped

  const Options options_;
  MetricBook book_{WorkerRows()};
  mutable Mutex mutex_;
  std::vector<GangFigures> gangs_ ABSL_GUARDED_BY(mutex_);
  std::vector<CardFigures> cards_ ABSL_GUARDED_BY(mutex_);
  int64_t trash_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  double cards_at_ ABSL_GUARDED_BY(mutex_) = 0;  // time of PublishCards
  // Number and time of reports.
  std::deque<std::pair<int64_t, double>> pending_ ABSL_GUARDED_BY(mutex_);
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  double answered_at_ ABSL_GUARDED_BY(mutex_) = -1;  // below 0: never
  double lease_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
};

inline constexpr char kWorkerHttp[] = "127.0.0.1:7702";

struct WorkerHttpOptions {
  std::string listen;         // host:port; port 0: a free one; empty: no HTTP
  bool insecure = false;      // also off loopback
  bool or_free_port = false;  // if the port is taken
};

// Null if `listen` is empty. Errors as HttpExposer::Start. Borrows the metrics.
absl::StatusOr<std::unique_ptr<HttpExposer>> ServeWorkerHttp(const WorkerMetrics& metrics,
                                                             const WorkerHttpOptions& options);

// The exposer's address as other machines reach it, given that they reach the daemon at host:port
// `reached_at`: with the latter's host if the exposer listens on every interface; empty if the
// exposer is on loopback and `reached_at` is not.
std::string AdvertisedHttp(const HttpExposer& exposer, const std::string& reached_at);

}  // namespace nibble

#endif  // NIBBLE_WORKER_METRICS_WORKER_METRICS_H_
