#include "worker/metrics/worker_metrics.h"

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

const WorkerTable& Rows() { return WorkerRows(); }

}  // namespace

WorkerMetrics::WorkerMetrics(Options options) : options_(std::move(options)) {}

void WorkerMetrics::Publish(std::vector<GangFigures> gangs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  gangs_.swap(gangs);
}

void WorkerMetrics::Reported(int64_t number) {
  book_.Add(Rows().reports, {});
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number <= 1) pending_.clear();
  pending_.emplace_back(number, options_.clock());
  if (pending_.size() > kMaxPending) pending_.pop_front();
}

void WorkerMetrics::Answered(int64_t answered, int64_t lease_ms) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double now = options_.clock();
  connected_ = true;
  heard_ = now;
  lease_seconds_ = static_cast<double>(lease_ms) / 1000;
  while (!pending_.empty() && pending_.front().first <= answered) {
    book_.Observe(Rows().report_seconds, {}, now - pending_.front().second);
    pending_.pop_front();
  }
}

void WorkerMetrics::StreamLost(const absl::Status& status) {
  book_.Add(Rows().streams_lost, {absl::StatusCodeToString(status.code())});
  const std::lock_guard<std::mutex> lock(mutex_);
  connected_ = false;
  pending_.clear();
}

void WorkerMetrics::Fetched(double seconds, int64_t bytes, const absl::Status& status) {
  book_.Add(Rows().replicas, {status.ok() ? "done" : "failed"});
  book_.Add(Rows().replica_bytes, {}, static_cast<double>(bytes));
  if (status.ok()) book_.Observe(Rows().replica_seconds, {}, seconds);
}

absl::Status WorkerMetrics::Ready() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (connected_) return absl::OkStatus();
  if (heard_ < 0) return absl::UnavailableError("the coordinator was not heard yet");
  const double silence = options_.clock() - heard_;
  if (silence < lease_seconds_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator was not heard for ", silence,
                                             " s; the lease is ", lease_seconds_, " s"));
}

std::string WorkerMetrics::Page() const {
  const WorkerTable& rows = Rows();
  MetricPage page(rows);
  page.Set(rows.slots, {}, options_.slots);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    FillGangs(gangs_, options_.figures, page);
    page.Set(rows.connected, {}, connected_ ? 1 : 0);
    if (heard_ >= 0) {
      page.Set(rows.silence, {}, options_.clock() - heard_);
      page.Set(rows.lease, {}, lease_seconds_);
    }
  }
  return RenderPage(rows, page, book_, "nibble-worker", options_.version);
}

}  // namespace nibble
