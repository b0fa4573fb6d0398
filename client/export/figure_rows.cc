#include "client/export/figure_rows.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/trainer/report/event_descriptions.h"

namespace nibble {
namespace {

std::string CsvText(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string CsvCell(const nlohmann::ordered_json& value) {
  return CsvText(value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::vector<std::string> FigureColumns(std::string_view event) {
  std::vector<std::string> columns = {"time"};
  for (const EventFieldDescription& field : FieldsOfEvent(event)) columns.push_back(field.name);
  return columns;
}

std::string CsvHead(const std::vector<std::string>& columns) {
  std::string line;
  for (const std::string& column : columns) {
    absl::StrAppend(&line, line.empty() ? "" : ",", CsvText(column));
  }
  return line + "\n";
}

std::string CsvRow(const RunEvent& event, const std::vector<std::string>& columns) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto found = event.fields.find(columns[i]);
    absl::StrAppend(&line, i == 0 ? "" : ",", found == event.fields.end() ? "" : CsvCell(*found));
  }
  return line + "\n";
}

nlohmann::ordered_json RowObject(const RunEvent& event, const std::vector<std::string>& columns) {
  nlohmann::ordered_json row = nlohmann::ordered_json::object();
  for (const std::string& column : columns) {
    const auto found = event.fields.find(column);
    if (found != event.fields.end()) row[column] = *found;
  }
  return row;
}

}  // namespace nibble
