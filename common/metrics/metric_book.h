// Values of a table's rows. A MetricBook counts what happens, for as long as a program runs; a
// MetricPage is filled anew for each scrape with what is. Both are bounded: a family has
// MetricTable::kMaxSeries series, and what is for another is dropped and counted.
//
// Labels are given by their values, in the order of the row's labels.
//
// Ownership: both borrow the table. Thread-safety: a book, all methods; a page, none of its own.
#ifndef NIBBLE_COMMON_METRICS_METRIC_BOOK_H_
#define NIBBLE_COMMON_METRICS_METRIC_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/metrics/metric_table.h"
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

  // Of a counter; what is not above 0 is not added.
  void Add(const MetricSpec& row, LabelValues labels, double by = 1);
  // Of a gauge.
  void Set(const MetricSpec& row, LabelValues labels, double value);
  // Of a histogram.
  void Observe(const MetricSpec& row, LabelValues labels, double value);

  // One family for each row that has a series.
  std::vector<prometheus::MetricFamily> Collect() const;
  // Observations that found no room.
  int64_t dropped() const;

 private:
  struct Row;
  template <class Metric>
  Metric* Find(const MetricSpec& row, LabelValues labels);

  const MetricTable& table_;
  prometheus::Registry registry_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Row>> rows_;  // by index; null: nothing yet
  int64_t dropped_ = 0;
};

class MetricPage {
 public:
  explicit MetricPage(const MetricTable& table);

  // Of a counter or gauge.
  void Set(const MetricSpec& row, LabelValues labels, double value);
  // Of a histogram: counts[i] values above bounds[i - 1] and at most bounds[i]; one more than
  // bounds.
  void SetHistogram(const MetricSpec& row, LabelValues labels, absl::Span<const double> bounds,
                    absl::Span<const uint64_t> counts, double sum);

  int64_t dropped() const { return dropped_; }

  // The text that Prometheus reads: every row of the table in its order, with what the page and the
  // book have of it, also where that is nothing. The page is empty afterwards.
  std::string Render(const MetricBook& book);

 private:
  prometheus::ClientMetric* Append(const MetricSpec& row, LabelValues labels);

  const MetricTable& table_;
  std::vector<prometheus::MetricFamily> families_;  // by index
  int64_t dropped_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_METRIC_BOOK_H_
