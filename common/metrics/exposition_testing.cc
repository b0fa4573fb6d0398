#include "common/metrics/exposition_testing.h"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "httplib.h"

namespace nibble {
namespace {

struct Line {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

absl::Status Bad(absl::string_view line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", line));
}

bool IsName(absl::string_view text) {
  return !text.empty() && text.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
                              "YZ0123456789_:") == absl::string_view::npos;
}

// Removes `name="value"` from the front of the text; false if there is none.
bool TakeLabel(absl::string_view& text, Line& line) {
  const size_t equals = text.find("=\"");
  if (equals == absl::string_view::npos || !IsName(text.substr(0, equals))) return false;
  const std::string name(text.substr(0, equals));
  std::string value;
  size_t at = equals + 2;
  for (; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\' && ++at == text.size()) return false;
    value.push_back(text[at]);
  }
  if (at >= text.size()) return false;
  text.remove_prefix(at + 1);
  absl::ConsumePrefix(&text, ",");
  return line.labels.emplace(name, value).second;
}

absl::StatusOr<Line> ParseLine(absl::string_view text) {
  Line line;
  const size_t end = text.find_first_of("{ ");
  if (end == absl::string_view::npos) return Bad(text, "no value");
  line.name = std::string(text.substr(0, end));
  if (!IsName(line.name)) return Bad(text, "no name");
  absl::string_view rest = text.substr(end);
  if (absl::ConsumePrefix(&rest, "{")) {
    while (!absl::StartsWith(rest, "}")) {
      if (!TakeLabel(rest, line)) return Bad(text, "labels");
    }
    rest.remove_prefix(1);
  }
  if (!absl::ConsumePrefix(&rest, " ")) return Bad(text, "no value");
  if (rest == "Nan") {
    line.value = std::numeric_limits<double>::quiet_NaN();
  } else if (!absl::SimpleAtod(rest, &line.value)) {
    return Bad(text, "value");
  }
  return line;
}

std::string SeriesName(const Line& line, bool with_le) {
  std::vector<std::string> labels;
  for (const auto& [name, value] : line.labels) {
    if (with_le || name != "le") labels.push_back(absl::StrCat(name, "=\"", value, "\""));
  }
  return labels.empty() ? line.name : absl::StrCat(line.name, "{", absl::StrJoin(labels, ","), "}");
}

// The family of a series: for those of a histogram, the name without its suffix.
std::string FamilyOf(const std::string& name,
                     const std::map<std::string, ExposedFamily>& families) {
  for (const char* const suffix : {"_bucket", "_sum", "_count"}) {
    absl::string_view base = name;
    if (!absl::ConsumeSuffix(&base, suffix)) continue;
    const auto found = families.find(std::string(base));
    if (found != families.end() && found->second.type == "histogram") return std::string(base);
  }
  return name;
}

}  // namespace

absl::StatusOr<Exposition> Exposition::Parse(absl::string_view text) {
  Exposition exposition;
  std::map<std::string, double> buckets;  // by series without le: the last one
  if (!text.empty() && !absl::EndsWith(text, "\n")) return Bad(text, "no end of line");
  for (const absl::string_view raw : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(raw, absl::MaxSplits(' ', 3));
    if (words[0] == "#") {
      if (words.size() != 4) return Bad(raw, "comment");
      ExposedFamily& family = exposition.families_[words[2]];
      std::string& field = words[1] == "HELP" ? family.help : family.type;
      if (!field.empty()) return Bad(raw, "the family comes twice");
      field = words[3];
      continue;
    }
    NIBBLE_ASSIGN_OR_RETURN(const Line line, ParseLine(raw));
    const auto family = exposition.families_.find(FamilyOf(line.name, exposition.families_));
    if (family == exposition.families_.end()) return Bad(raw, "of no family");
    if (!family->second.series.emplace(SeriesName(line, true), line.value).second) {
      return Bad(raw, "the series comes twice");
    }
    if (absl::EndsWith(line.name, "_bucket") && line.labels.contains("le")) {
      double& last = buckets[SeriesName(line, false)];
      if (line.value < last) return Bad(raw, "a bucket is below the one before it");
      last = line.value;
    }
  }
  for (const auto& [series, last] : buckets) {
    const size_t at = series.find("_bucket");
    const std::string count = absl::StrCat(series.substr(0, at), "_count", series.substr(at + 7));
    if (exposition.Value(count) != last) return Bad(series, "the buckets are not the count");
  }
  return exposition;
}

double Exposition::Value(const std::string& series) const {
  const auto family = families_.find(FamilyOf(series.substr(0, series.find('{')), families_));
  if (family != families_.end()) {
    const auto found = family->second.series.find(series);
    if (found != family->second.series.end()) return found->second;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

size_t Exposition::SeriesOf(const std::string& family) const {
  const auto found = families_.find(family);
  if (found == families_.end()) return 0;
  size_t count = 0;
  for (const auto& [name, value] : found->second.series) {
    if (!absl::StartsWith(name, family + "_bucket")) ++count;
  }
  return count;
}

std::vector<std::string> Exposition::MissingOf(const MetricTable& table) const {
  std::vector<std::string> missing;
  for (const MetricSpec& row : table.rows()) {
    const char* const type = row.kind == MetricKind::kCounter ? "counter"
                             : row.kind == MetricKind::kGauge ? "gauge"
                                                              : "histogram";
    const auto found = families_.find(row.name);
    if (found == families_.end() || found->second.type != type || found->second.help != row.help) {
      missing.push_back(row.name);
    }
  }
  return missing;
}

absl::Status PromtoolCheck(const std::string& text) {
  constexpr char kPromtool[] = "/usr/bin/promtool";
  if (access(kPromtool, X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(kPromtool, " does not exist: install Debian's package prometheus"));
  }
  std::FILE* const file = std::tmpfile();
  if (file == nullptr) return ErrnoError(errno, "making a temporary file");
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
  std::rewind(file);
  const std::string command =
      absl::StrCat(kPromtool, " check metrics 2>&1 < /dev/fd/", fileno(file));
  std::FILE* const tool = popen(command.c_str(), "r");
  std::string output;
  char bytes[4096];
  for (size_t got; tool != nullptr && (got = std::fread(bytes, 1, sizeof bytes, tool)) > 0;) {
    output.append(bytes, got);
  }
  const int code = tool == nullptr ? -1 : pclose(tool);
  std::fclose(file);
  return code == 0 ? absl::OkStatus() : absl::InvalidArgumentError(output);
}

absl::StatusOr<std::string> HttpGet(int port, const std::string& path) {
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(60);
  const httplib::Result result = client.Get(path);
  if (!result) return absl::UnavailableError(httplib::to_string(result.error()));
  if (result->status != 200) {
    return absl::InternalError(absl::StrCat(result->status, ": ", result->body));
  }
  return result->body;
}

}  // namespace nibble
