#include "worker/metrics/worker_table.h"

#include <utility>

#include "absl/strings/match.h"

namespace nibble {

const MetricSpec& WorkerTable::Declare(const v1::MetricRow& row, std::vector<std::string> labels) {
  for (const MetricSpec& known : rows()) {
    if (known.name == row.name()) return known;
  }
  if (row.ranks() == v1::FIGURE_RANKS_EACH) labels.push_back("rank");
  if (!row.label().empty()) labels.push_back(row.label());
  const bool counts = absl::EndsWith(row.name(), "_total");
  return counts ? Counter(row.name(), row.unit(), std::move(labels), row.help())
                : Gauge(row.name(), row.unit(), std::move(labels), row.help());
}

FigureRows WorkerTable::NewestOf(const google::protobuf::Descriptor& message,
                                 std::vector<std::string> labels) {
  FigureRows rows;
  for (int i = 0; i < message.field_count(); ++i) {
    const v1::Figure& figure = message.field(i)->options().GetExtension(v1::figure);
    if (figure.has_metric()) rows[message.field(i)] = &Declare(figure.metric(), labels);
  }
  return rows;
}

FigureRows WorkerTable::TotalsOf(const google::protobuf::Descriptor& message,
                                 std::vector<std::string> labels) {
  FigureRows rows;
  for (int i = 0; i < message.field_count(); ++i) {
    const v1::Figure& figure = message.field(i)->options().GetExtension(v1::figure);
    if (figure.has_total()) rows[message.field(i)] = &Declare(figure.total(), labels);
  }
  return rows;
}

const WorkerTable& WorkerRows() {
  static const auto* const rows = new WorkerTable;
  return *rows;
}

}  // namespace nibble
