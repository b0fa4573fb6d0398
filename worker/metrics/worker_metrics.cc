#include "worker/metrics/worker_metrics.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/metrics/http_exposer.h"
#include "google/protobuf/message.h"
#include "proto/nibble/v1/figure.pb.h"
#include "worker/metrics/worker_table.h"

namespace nibble {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

const WorkerTable& Rows() { return WorkerRows(); }

double ValueOf(const Message& figures, const FieldDescriptor& field) {
  const Reflection& reflection = *figures.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    return reflection.GetDouble(figures, &field);
  }
  return static_cast<double>(reflection.GetInt64(figures, &field));
}

// Sets a row's value, given the labels of its message and the rank.
void SetRow(const MetricSpec& row, const v1::MetricRow& option, std::vector<std::string> labels,
            const std::string& rank, double value, MetricPage& page) {
  if (option.ranks() == v1::FIGURE_RANKS_EACH) labels.push_back(rank);
  if (!option.label().empty()) labels.push_back(option.label_value());
  switch (labels.size()) {
    case 1:
      return page.Set(row, {labels[0]}, value);
    case 2:
      return page.Set(row, {labels[0], labels[1]}, value);
    default:
      return page.Set(row, {labels[0], labels[1], labels[2]}, value);
  }
}

const v1::Figure& FigureOf(const FieldDescriptor& field) {
  return field.options().GetExtension(v1::figure);
}

void FillFigures(const FigureRows& rows, const Message& figures,
                 const std::vector<std::string>& labels, MetricPage& page) {
  for (const auto& [field, row] : rows) {
    SetRow(*row, FigureOf(*field).metric(), labels, "", ValueOf(figures, *field), page);
  }
}

void FillTraining(const GangFigures& gang, const link::v1::RankReport& report,
                  const FigureLimits& limits, MetricPage& page) {
  const std::string& job = gang.job;
  page.Set(Rows().next_step, {job}, static_cast<double>(report.next_step()));
  FillFigures(Rows().steps, report.totals(), {job}, page);
  if (gang.flops_per_token > 0) {
    page.Set(Rows().flops, {job},
             gang.flops_per_token * static_cast<double>(report.totals().tokens()));
  }
  // Paths of one name for different reasons are one series.
  std::map<std::pair<std::string, std::string>, link::v1::ProductPath> products;
  for (const link::v1::ProductPath& product : report.products()) {
    link::v1::ProductPath& sum = products[{product.gemm(), product.path()}];
    sum.set_linears(sum.linears() + product.linears());
  }
  for (const auto& [labels, sum] : products) {
    FillFigures(Rows().products, sum, {job, labels.first, labels.second}, page);
  }
  for (const link::v1::GuardTotal& total : report.guards()) {
    FillFigures(Rows().guards, total, {job, total.guard(), total.action()}, page);
  }
  if (!report.has_sample()) return;
  FillFigures(Rows().step, report.sample(), {job}, page);
  const double peak = limits.peak_flops * gang.world;
  if (peak > 0 && gang.flops_per_token > 0) {
    page.Set(Rows().mfu, {job}, report.sample().tokens_per_second() * gang.flops_per_token / peak);
  }
}

void FillRank(const std::string& job, const RankFigures& figures, MetricPage& page) {
  const std::string rank = absl::StrCat(figures.rank);
  for (const auto& [field, row] : Rows().sums) {
    SetRow(*row, FigureOf(*field).total(), {job}, rank,
           ValueOf(figures.report.totals().sums(), *field), page);
  }
  page.Set(Rows().rank_memory, {job, rank}, static_cast<double>(figures.report.memory_bytes()));
  page.Set(Rows().rank_device_memory, {job, rank},
           static_cast<double>(figures.report.device_memory_bytes()));
  page.Set(Rows().rank_since_step, {job, rank}, figures.since_step_seconds);
  page.Set(Rows().rank_median_step, {job, rank}, figures.median_step_seconds);
  page.Set(Rows().rank_log, {job, rank}, static_cast<double>(figures.log_bytes));
}

void FillPrecision(const std::string& job, const RankFigures::Precision& samples,
                   const FigureLimits& limits, MetricPage& page) {
  std::vector<std::string> layers;  // in the model's order
  std::set<std::string> known;
  for (const link::v1::PrecisionSample& sample : samples) {
    if (known.insert(sample.layer()).second) layers.push_back(sample.layer());
  }
  std::set<std::string> shown;
  for (const size_t layer : EvenlySpread(layers.size(), limits.precision_layers)) {
    shown.insert(layers[layer]);
  }
  page.Set(Rows().precision_step, {job}, static_cast<double>(samples[0].step()));
  page.Set(Rows().precision_layers, {job, "yes"}, static_cast<double>(shown.size()));
  page.Set(Rows().precision_layers, {job, "no"}, static_cast<double>(layers.size() - shown.size()));
  std::set<std::pair<std::string, std::string>> seen;
  for (const link::v1::PrecisionSample& sample : samples) {
    if (!shown.contains(sample.layer()) ||
        !seen.insert({sample.layer(), sample.operand()}).second) {
      continue;
    }
    page.Set(Rows().precision_format, {job, sample.layer(), sample.operand(), sample.format()}, 1);
    FillFigures(Rows().precision, sample, {job, sample.layer(), sample.operand()}, page);
  }
}

// The checkpoints of a job by those of its ranks here.
void FillCheckpoints(const GangFigures& gang, MetricPage& page) {
  for (const auto& [field, row] : Rows().checkpoints) {
    const v1::MetricRow& option = FigureOf(*field).metric();
    std::optional<double> value;
    if (option.ranks() != v1::FIGURE_RANKS_UNSPECIFIED) value = 0;
    for (const RankFigures& rank : gang.ranks) {
      const double own = ValueOf(rank.report.checkpoints(), *field);
      if (option.ranks() == v1::FIGURE_RANKS_SUM) *value += own;
      if (option.ranks() == v1::FIGURE_RANKS_MAX) value = std::max(*value, own);
      if (option.ranks() == v1::FIGURE_RANKS_UNSPECIFIED && rank.rank == 0) value = own;
    }
    if (value.has_value()) SetRow(*row, option, {gang.job}, "", *value, page);
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
  for (const RankFigures& rank : gang.ranks) {
    ++phases[rank.phase];
    hung += rank.hung ? 1 : 0;
    FillRank(job, rank, page);
    if (rank.rank != 0) continue;
    FillTraining(gang, rank.report, limits, page);
    if (rank.precision != nullptr && !rank.precision->empty()) {
      FillPrecision(job, *rank.precision, limits, page);
    }
  }
  for (const auto& [phase, count] : phases) {
    page.Set(Rows().ranks, {job, phase}, static_cast<double>(count));
  }
  page.Set(Rows().hung, {job}, static_cast<double>(hung));
  FillCheckpoints(gang, page);
}

}  // namespace

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

void FillCards(absl::Span<const CardFigures> cards, MetricPage& page) {
  for (const CardFigures& card : cards) {
    for (const CardFigure& figure : card.figures) {
      if (figure.label.empty()) {
        page.Set(*figure.row, {card.card}, figure.value);
      } else {
        page.Set(*figure.row, {card.card, figure.label}, figure.value);
      }
    }
  }
}

WorkerMetrics::WorkerMetrics(Options options) : options_(std::move(options)) {}

void WorkerMetrics::Publish(std::vector<GangFigures> gangs) {
  MutexLock lock(&mutex_);
  gangs_.swap(gangs);
}

void WorkerMetrics::PublishCards(std::vector<CardFigures> cards) {
  MutexLock lock(&mutex_);
  cards_.swap(cards);
  cards_at_ = options_.clock();
}

void WorkerMetrics::PublishTrash(int64_t bytes) {
  MutexLock lock(&mutex_);
  trash_bytes_ = bytes;
}

void WorkerMetrics::Reported(int64_t number) {
  book_.Add(Rows().reports, {});
  MutexLock lock(&mutex_);
  if (number <= 1) pending_.clear();
  pending_.emplace_back(number, options_.clock());
  if (pending_.size() > kMaxPending) pending_.pop_front();
}

void WorkerMetrics::Answered(int64_t answered, int64_t lease_ms) {
  MutexLock lock(&mutex_);
  const double now = options_.clock();
  connected_ = true;
  answered_at_ = now;
  lease_seconds_ = static_cast<double>(lease_ms) / 1000;
  while (!pending_.empty() && pending_.front().first <= answered) {
    book_.Observe(Rows().report_seconds, {}, now - pending_.front().second);
    pending_.pop_front();
  }
}

void WorkerMetrics::StreamLost(const absl::Status& status) {
  book_.Add(Rows().streams_lost, {absl::StatusCodeToString(status.code())});
  MutexLock lock(&mutex_);
  connected_ = false;
  pending_.clear();
}

void WorkerMetrics::Fetched(double seconds, int64_t bytes, const absl::Status& status) {
  book_.Add(Rows().replicas, {status.ok() ? "done" : "failed"});
  book_.Add(Rows().replica_bytes, {}, static_cast<double>(bytes));
  if (status.ok()) book_.Observe(Rows().replica_seconds, {}, seconds);
}

absl::Status WorkerMetrics::Ready() const {
  MutexLock lock(&mutex_);
  if (connected_) return absl::OkStatus();
  if (answered_at_ < 0) return absl::UnavailableError("the coordinator has not answered yet");
  const double silence = options_.clock() - answered_at_;
  if (silence < lease_seconds_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator has not answered for ", silence,
                                             " s; the lease is ", lease_seconds_, " s"));
}

std::string WorkerMetrics::Page() const {
  const WorkerTable& rows = Rows();
  MetricPage page(rows);
  page.Set(rows.slots, {}, options_.slots);
  int64_t trash_bytes = 0;
  {
    MutexLock lock(&mutex_);
    trash_bytes = trash_bytes_;
    page.Set(rows.trash_bytes, {}, static_cast<double>(trash_bytes));
    FillGangs(gangs_, options_.figures, page);
    if (options_.clock() - cards_at_ <= options_.card_seconds) FillCards(cards_, page);
    page.Set(rows.connected, {}, connected_ ? 1 : 0);
    if (answered_at_ >= 0) {
      page.Set(rows.silence, {}, options_.clock() - answered_at_);
      page.Set(rows.lease, {}, lease_seconds_);
    }
  }
  return RenderPage(rows, page, book_,
                    {.program = "nibble-worker",
                     .version = options_.version,
                     .data_directory = options_.data_directory,
                     .removable_bytes = trash_bytes,
                     .certificates = options_.certificates ? options_.certificates()
                                                           : std::vector<CertificateTime>()});
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
