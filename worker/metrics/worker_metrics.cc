#include "worker/metrics/worker_metrics.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/http_exposer.h"
#include "common/metrics/listen_address.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

const WorkerTable& Rows() { return WorkerRows(); }

void FillTraining(const GangFigures& gang, const RankNews& news, const FigureLimits& limits,
                  MetricPage& page) {
  const std::string& job = gang.job;
  page.Set(Rows().next_step, {job}, static_cast<double>(news.next_step));
  page.Set(Rows().steps, {job}, static_cast<double>(news.made.steps));
  page.Set(Rows().tokens, {job}, static_cast<double>(news.made.tokens));
  page.Set(Rows().skipped, {job}, static_cast<double>(news.made.skipped));
  page.Set(Rows().checkpoints, {job, "stored"}, static_cast<double>(news.checkpoints.stored));
  page.Set(Rows().checkpoints, {job, "failed"}, static_cast<double>(news.checkpoints.failed));
  if (gang.flops_per_token > 0) {
    page.Set(Rows().flops, {job}, gang.flops_per_token * static_cast<double>(news.made.tokens));
  }
  if (!news.has_sample) return;
  page.Set(Rows().loss, {job}, news.loss);
  page.Set(Rows().gradient_norm, {job}, news.gradient_norm);
  page.Set(Rows().learning_rate, {job}, news.learning_rate);
  page.Set(Rows().trained_tokens, {job}, static_cast<double>(news.tokens));
  page.Set(Rows().token_rate, {job}, news.tokens_per_second);
  page.Set(Rows().step_seconds, {job}, news.step_seconds);
  page.Set(Rows().revision, {job}, static_cast<double>(news.revision));
  page.Set(Rows().revision_step, {job}, static_cast<double>(news.revision_first_step));
  const double peak = limits.peak_flops * gang.world;
  if (peak > 0 && gang.flops_per_token > 0) {
    page.Set(Rows().mfu, {job}, news.tokens_per_second * gang.flops_per_token / peak);
  }
}

void FillRank(const std::string& job, const RankFigures& figures, MetricPage& page) {
  const std::string rank = absl::StrCat(figures.rank);
  const RankNews& news = figures.news;
  const std::pair<const char*, double> parts[] = {{"data", news.made.data_seconds},
                                                  {"weights", news.made.weights_seconds},
                                                  {"forward", news.made.forward_seconds},
                                                  {"backward", news.made.backward_seconds},
                                                  {"communication", news.made.reduce_seconds},
                                                  {"optimizer", news.made.update_seconds}};
  for (const auto& [part, seconds] : parts) {
    page.Set(Rows().part_seconds, {job, rank, part}, seconds);
  }
  page.Set(Rows().rank_seconds, {job, rank}, news.made.seconds);
  page.Set(Rows().rank_memory, {job, rank}, static_cast<double>(news.memory_bytes));
  page.Set(Rows().rank_since_step, {job, rank}, figures.since_step_seconds);
  page.Set(Rows().rank_median_step, {job, rank}, figures.median_step_seconds);
  page.Set(Rows().rank_log, {job, rank}, static_cast<double>(figures.log_bytes));
}

void FillPrecision(const std::string& job, const std::vector<PrecisionSample>& samples,
                   const FigureLimits& limits, MetricPage& page) {
  std::vector<std::string> layers;  // in the model's order
  std::set<std::string> known;
  for (const PrecisionSample& sample : samples) {
    if (known.insert(sample.layer).second) layers.push_back(sample.layer);
  }
  std::set<std::string> shown;
  for (const size_t layer : EvenlySpread(layers.size(), limits.precision_layers)) {
    shown.insert(layers[layer]);
  }
  page.Set(Rows().precision_step, {job}, static_cast<double>(samples.front().step));
  page.Set(Rows().precision_layers, {job, "yes"}, static_cast<double>(shown.size()));
  page.Set(Rows().precision_layers, {job, "no"}, static_cast<double>(layers.size() - shown.size()));
  std::set<std::pair<std::string, std::string>> seen;
  for (const PrecisionSample& sample : samples) {
    if (!shown.contains(sample.layer) || !seen.insert({sample.layer, sample.operand}).second) {
      continue;
    }
    page.Set(Rows().precision_format, {job, sample.layer, sample.operand, sample.format}, 1);
    const LabelValues labels = {job, sample.layer, sample.operand};
    page.Set(Rows().precision_error, labels, sample.relative_error);
    page.Set(Rows().precision_underflow, labels, sample.underflow);
    page.Set(Rows().precision_clipped, labels, sample.clipped);
    page.Set(Rows().precision_amax, labels, sample.amax);
    page.Set(Rows().precision_spread, labels, sample.scale_spread_octaves);
    page.Set(Rows().precision_non_finite, labels, static_cast<double>(sample.non_finite));
  }
}

void FillGang(const GangFigures& gang, const FigureLimits& limits, MetricPage& page) {
  const std::string& job = gang.job;
  page.Set(Rows().attempt, {job}, static_cast<double>(gang.attempt));
  if (gang.planned_steps > 0) {
    page.Set(Rows().last_step, {job}, static_cast<double>(gang.planned_steps));
  }
  std::map<std::string, int64_t> phases;
  int64_t hung = 0;
  CheckpointTotals checkpoints;
  for (const RankFigures& rank : gang.ranks) {
    ++phases[rank.phase];
    hung += rank.hung ? 1 : 0;
    checkpoints.bytes += rank.news.checkpoints.bytes;
    checkpoints.stall_seconds =
        std::max(checkpoints.stall_seconds, rank.news.checkpoints.stall_seconds);
    checkpoints.write_seconds =
        std::max(checkpoints.write_seconds, rank.news.checkpoints.write_seconds);
    FillRank(job, rank, page);
    if (rank.rank != 0) continue;
    FillTraining(gang, rank.news, limits, page);
    if (rank.precision != nullptr && !rank.precision->empty()) {
      FillPrecision(job, *rank.precision, limits, page);
    }
  }
  for (const auto& [phase, count] : phases) {
    page.Set(Rows().ranks, {job, phase}, static_cast<double>(count));
  }
  page.Set(Rows().hung, {job}, static_cast<double>(hung));
  page.Set(Rows().checkpoint_bytes, {job}, static_cast<double>(checkpoints.bytes));
  page.Set(Rows().checkpoint_stall, {job}, checkpoints.stall_seconds);
  page.Set(Rows().checkpoint_write, {job}, checkpoints.write_seconds);
}

}  // namespace

const WorkerTable& WorkerRows() {
  static const auto* const rows = new WorkerTable;
  return *rows;
}

std::vector<size_t> EvenlySpread(size_t count, size_t most) {
  const size_t chosen = most == 0 ? count : std::min(count, most);
  std::vector<size_t> indices;
  for (size_t i = 0; i < chosen; ++i) {
    indices.push_back(chosen == 1 ? 0 : i * (count - 1) / (chosen - 1));
  }
  return indices;
}

void FillGangs(absl::Span<const GangFigures> gangs, const FigureLimits& limits, MetricPage& page) {
  // An attempt starts only after its predecessor has ended; should both be here, the newer one
  // represents the job.
  std::map<std::string, const GangFigures*> newest;
  int64_t used = 0;
  for (const GangFigures& gang : gangs) {
    const GangFigures*& known = newest[gang.job];
    if (known == nullptr || known->attempt < gang.attempt) known = &gang;
    used += std::count_if(gang.ranks.begin(), gang.ranks.end(),
                          [](const RankFigures& rank) { return !rank.ended; });
  }
  for (const auto& [job, gang] : newest) FillGang(*gang, limits, page);
  page.Set(Rows().slots_used, {}, static_cast<double>(used));
}

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

absl::StatusOr<std::unique_ptr<HttpExposer>> ServeWorkerHttp(const WorkerMetrics& metrics,
                                                             const WorkerHttpOptions& options) {
  if (options.listen.empty()) return nullptr;
  HttpExposer::Options exposer = {
      .listen = options.listen, .insecure = options.insecure, .or_free_port = options.or_free_port};
  exposer.pages = {
      {"/metrics", [&metrics] { return MetricsAnswer(metrics.Page()); }},
      {"/healthz", [] { return HealthAnswer(absl::OkStatus()); }},
      {"/readyz", [&metrics] { return HealthAnswer(metrics.Ready()); }},
  };
  return HttpExposer::Start(std::move(exposer));
}

std::string AdvertisedHttp(const HttpExposer& exposer, const std::string& reached_at) {
  absl::StatusOr<ListenAddress> own = ParseListenAddress("http", exposer.address());
  const absl::StatusOr<ListenAddress> reached = ParseListenAddress("address", reached_at);
  if (!own.ok() || !reached.ok()) return exposer.address();
  if (own->loopback && !reached->loopback) return "";
  if (!own->any) return exposer.address();
  own->host = reached->host;
  return own->ToString();
}

}  // namespace nibble
