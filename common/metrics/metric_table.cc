#include "common/metrics/metric_table.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace nibble {
namespace {

constexpr absl::string_view kPrefix = "nibble_";
// Units other than base units, and suffixes that the text format adds itself.
constexpr const char* kRefused[] = {"_ms",     "_milliseconds", "_microseconds", "_minutes",
                                    "_hours",  "_kilobytes",    "_megabytes",    "_percent",
                                    "_bucket", "_count",        "_sum"};
// The suffix of the name that a unit requires.
constexpr std::pair<const char*, const char*> kUnits[] = {
    {"seconds", "_seconds"}, {"bytes", "_bytes"}, {"ratio", "_ratio"}};

bool IsName(absl::string_view text) {
  return !text.empty() && absl::ascii_islower(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return absl::ascii_islower(byte) || absl::ascii_isdigit(byte) || c == '_';
         });
}

absl::string_view KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      break;
  }
  return "histogram";
}

// The rule that the row breaks; empty: none.
std::string Fault(const MetricSpec& row) {
  if (!absl::StartsWith(row.name, kPrefix) || !IsName(row.name)) {
    return "the name is not nibble_ followed by lower-case words";
  }
  const bool total = absl::EndsWith(row.name, "_total");
  if (total != (row.kind == MetricKind::kCounter))
    return "counters, and no other kind, end in _total";
  const std::string base = total ? row.name.substr(0, row.name.size() - 6) : row.name;
  for (const char* const suffix : kRefused) {
    if (absl::EndsWith(base, suffix)) return absl::StrCat("the name ends with ", suffix);
  }
  for (const auto& [unit, suffix] : kUnits) {
    if ((row.unit == unit) != absl::EndsWith(base, suffix)) {
      return absl::StrCat("the unit ", unit, " and the suffix ", suffix, " go together");
    }
  }
  if (row.help.empty() || row.help.find_first_of("\n\\") != std::string::npos) {
    return "the help is not one line";
  }
  std::set<std::string> labels;
  for (const std::string& label : row.labels) {
    if (!IsName(label) || label == "le" || label == "quantile" || label == "instance" ||
        !labels.insert(label).second) {
      return absl::StrCat("the label '", label, "' is not a name, is reserved, or occurs twice");
    }
  }
  const bool ascending = std::adjacent_find(row.bounds.begin(), row.bounds.end(),
                                            std::greater_equal<>()) == row.bounds.end();
  if (!ascending || row.bounds.empty() != (row.kind != MetricKind::kHistogram)) {
    return "the bounds are not ascending, or the row is not a histogram";
  }
  return "";
}

std::vector<double> Steps(double first, double last) {
  std::vector<double> bounds;
  for (double decade = first; decade <= last; decade *= 10) {
    for (const double step : {1.0, 2.5, 5.0}) {
      if (decade * step <= last) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

}  // namespace

const MetricSpec& MetricTable::Counter(std::string name, std::string unit,
                                       std::vector<std::string> labels, std::string help) {
  rows_.push_back({MetricKind::kCounter,
                   std::move(name),
                   std::move(unit),
                   std::move(labels),
                   std::move(help),
                   {},
                   rows_.size()});
  return rows_.back();
}

const MetricSpec& MetricTable::Gauge(std::string name, std::string unit,
                                     std::vector<std::string> labels, std::string help) {
  rows_.push_back({MetricKind::kGauge,
                   std::move(name),
                   std::move(unit),
                   std::move(labels),
                   std::move(help),
                   {},
                   rows_.size()});
  return rows_.back();
}

const MetricSpec& MetricTable::Histogram(std::string name, std::string unit,
                                         std::vector<std::string> labels, std::string help,
                                         std::vector<double> bounds) {
  rows_.push_back({MetricKind::kHistogram, std::move(name), std::move(unit), std::move(labels),
                   std::move(help), std::move(bounds), rows_.size()});
  return rows_.back();
}

std::vector<double> ServiceSeconds() { return Steps(1e-4, 10); }
std::vector<double> WaitingSeconds() { return Steps(1e-2, 10'000); }

absl::Status CheckMetricTable(const MetricTable& table) {
  std::set<std::string> names;
  for (const MetricSpec& row : table.rows()) {
    std::string fault = Fault(row);
    if (fault.empty() && !names.insert(row.name).second) fault = "the name occurs twice";
    if (!fault.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("metric '", row.name, "': ", fault));
    }
  }
  return absl::OkStatus();
}

std::string MetricTableMarkdown(const MetricTable& table) {
  std::string out = "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const MetricSpec& row : table.rows()) {
    absl::StrAppend(&out, "| `", row.name, "` | ", KindName(row.kind), " | ", row.unit, " | ",
                    absl::StrJoin(row.labels, ", "), " | ", row.help, " |\n");
  }
  return out;
}

}  // namespace nibble
