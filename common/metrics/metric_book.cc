#include "common/metrics/metric_book.h"

#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_join.h"
#include "prometheus/client_metric.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_type.h"
#include "prometheus/text_serializer.h"

namespace nibble {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      break;
  }
  return prometheus::MetricType::Histogram;
}

// The key of a series: its label values, separated by a byte that none of them contains.
std::string KeyOf(LabelValues labels) { return absl::StrJoin(labels, absl::string_view("\0", 1)); }

}  // namespace

struct MetricBook::Row {
  prometheus::Family<prometheus::Counter>* counters = nullptr;
  prometheus::Family<prometheus::Gauge>* gauges = nullptr;
  prometheus::Family<prometheus::Histogram>* histograms = nullptr;
  absl::flat_hash_map<std::string, void*> series;  // by labels; of the row's kind
};

MetricBook::MetricBook(const MetricTable& table) : table_(table), rows_(table.rows().size()) {}
MetricBook::~MetricBook() = default;

template <class Metric>
Metric* MetricBook::Find(const MetricSpec& row, LabelValues labels) {
  MutexLock lock(&mutex_);
  std::unique_ptr<Row>& own = rows_[row.index];
  if (own == nullptr) own = std::make_unique<Row>();
  const std::string key = KeyOf(labels);
  if (const auto known = own->series.find(key); known != own->series.end()) {
    return static_cast<Metric*>(known->second);
  }
  if (own->series.size() >= MetricTable::kMaxSeries || labels.size() != row.labels.size()) {
    ++dropped_;
    return nullptr;
  }
  prometheus::Labels named;
  auto name = row.labels.begin();
  for (const absl::string_view value : labels) named[*name++] = std::string(value);
  Metric* metric = nullptr;
  if constexpr (std::is_same_v<Metric, prometheus::Counter>) {
    if (own->counters == nullptr) {
      own->counters = &prometheus::BuildCounter().Name(row.name).Help(row.help).Register(registry_);
    }
    metric = &own->counters->Add(named);
  } else if constexpr (std::is_same_v<Metric, prometheus::Gauge>) {
    if (own->gauges == nullptr) {
      own->gauges = &prometheus::BuildGauge().Name(row.name).Help(row.help).Register(registry_);
    }
    metric = &own->gauges->Add(named);
  } else {
    if (own->histograms == nullptr) {
      own->histograms =
          &prometheus::BuildHistogram().Name(row.name).Help(row.help).Register(registry_);
    }
    metric = &own->histograms->Add(named, row.bounds);
  }
  own->series.emplace(key, metric);
  return metric;
}

void MetricBook::Add(const MetricSpec& row, LabelValues labels, double by) {
  if (!(by > 0)) return;
  if (auto* const counter = Find<prometheus::Counter>(row, labels)) counter->Increment(by);
}

void MetricBook::Set(const MetricSpec& row, LabelValues labels, double value) {
  if (auto* const gauge = Find<prometheus::Gauge>(row, labels)) gauge->Set(value);
}

void MetricBook::Observe(const MetricSpec& row, LabelValues labels, double value) {
  if (auto* const histogram = Find<prometheus::Histogram>(row, labels)) histogram->Observe(value);
}

std::vector<prometheus::MetricFamily> MetricBook::Collect() const { return registry_.Collect(); }

int64_t MetricBook::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

MetricPage::MetricPage(const MetricTable& table) : table_(table), families_(table.rows().size()) {}

prometheus::ClientMetric* MetricPage::Append(const MetricSpec& row, LabelValues labels) {
  std::vector<prometheus::ClientMetric>& series = families_[row.index].metric;
  if (series.size() >= MetricTable::kMaxSeries || labels.size() != row.labels.size()) {
    ++dropped_;
    return nullptr;
  }
  prometheus::ClientMetric& metric = series.emplace_back();
  auto name = row.labels.begin();
  for (const absl::string_view value : labels)
    metric.label.push_back({*name++, std::string(value)});
  return &metric;
}

void MetricPage::Set(const MetricSpec& row, LabelValues labels, double value) {
  prometheus::ClientMetric* const metric = Append(row, labels);
  if (metric == nullptr) return;
  (row.kind == MetricKind::kCounter ? metric->counter.value : metric->gauge.value) = value;
}

void MetricPage::SetHistogram(const MetricSpec& row, LabelValues labels,
                              absl::Span<const double> bounds, absl::Span<const uint64_t> counts,
                              double sum) {
  prometheus::ClientMetric* const metric = Append(row, labels);
  if (metric == nullptr) return;
  uint64_t below = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
    metric->histogram.bucket.push_back({below, bound});
  }
  metric->histogram.sample_count = below;
  metric->histogram.sample_sum = sum;
}

std::string MetricPage::Render(const MetricBook& book) {
  absl::flat_hash_map<std::string, std::vector<prometheus::ClientMetric>> counted;
  for (prometheus::MetricFamily& family : book.Collect()) {
    counted[family.name] = std::move(family.metric);
  }
  std::vector<prometheus::MetricFamily> families =
      std::exchange(families_, std::vector<prometheus::MetricFamily>(table_.rows().size()));
  for (const MetricSpec& row : table_.rows()) {
    prometheus::MetricFamily& family = families[row.index];
    family.name = row.name;
    family.help = row.help;
    family.type = TypeOf(row.kind);
    if (const auto found = counted.find(row.name); found != counted.end()) {
      std::move(found->second.begin(), found->second.end(), std::back_inserter(family.metric));
    }
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace nibble
