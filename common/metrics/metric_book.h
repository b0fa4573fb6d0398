// Values of a table's rows. A MetricBook accumulates counters, gauges and histograms while a
// program runs; a MetricPage holds values that are computed anew for each scrape. A family has at
// most MetricTable::kMaxSeries series; values for further ones are dropped and counted.
//
// Labels are passed as their values, in the order of the row's labels.
//
// Ownership: both borrow the table. Thread-safety: MetricBook: all methods; MetricPage: none.
#ifndef NIBBLE_COMMON_METRICS_METRIC_BOOK_H_
#define NIBBLE_COMMON_METRICS_METRIC_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/metrics/metric_table.h"
#include "common/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"

namespace nibble {

using LabelValues = std::initializer_list<absl::string_view>;

class MetricBook {
 public:
  explicit MetricBook(const MetricTable& table);
  ~MetricBook();
  MetricBook(const MetricBook&) = delete;
  MetricBook& operator=(const MetricBook&) = delete;

  // Increments a counter; ignores values of 0 and below.
  void Add(const MetricSpec& row, LabelValues labels, double by = 1);
  // Sets a gauge.
  void Set(const MetricSpec& row, LabelValues labels, double value);
  // Adds a value to a histogram.
  void Observe(const MetricSpec& row, LabelValues labels, double value);

  // One family for each row that has a series.
  std::vector<prometheus::MetricFamily> Collect() const;
  // The number of dropped values.
  int64_t dropped() const;

 private:
  struct Row;
  template <class Metric>
  Metric* Find(const MetricSpec& row, LabelValues labels);

  const MetricTable& table_;
  prometheus::Registry registry_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Row>> rows_ ABSL_GUARDED_BY(mutex_);  // by index; null: no series
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

class MetricPage {
 public:
  explicit MetricPage(const MetricTable& table);

  // Sets a counter or gauge.
  void Set(const MetricSpec& row, LabelValues labels, double value);
  // Sets a histogram. counts[i]: the number of values above bounds[i - 1] and at most bounds[i].
  // counts: [bounds + 1]; the last one counts values above all bounds.
  void SetHistogram(const MetricSpec& row, LabelValues labels, absl::Span<const double> bounds,
                    absl::Span<const uint64_t> counts, double sum);

  int64_t dropped() const { return dropped_; }

  // Prometheus's text format: every row of the table, in order, with the series of the page and the
  // book; a row without series has its help and type alone. The page is empty afterwards.
  std::string Render(const MetricBook& book);

 private:
  prometheus::ClientMetric* Append(const MetricSpec& row, LabelValues labels);

  const MetricTable& table_;
  std::vector<prometheus::MetricFamily> families_;  // by index
  int64_t dropped_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_METRIC_BOOK_H_
