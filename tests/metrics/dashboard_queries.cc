#include "tests/metrics/dashboard_queries.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

using nlohmann::json;

// count by (LABEL) (SELECTOR) of label_values(SELECTOR, LABEL).
std::string AsCount(const std::string& query) {
  absl::string_view text = query;
  const size_t comma = text.rfind(',');
  if (!absl::ConsumePrefix(&text, "label_values(") || !absl::ConsumeSuffix(&text, ")") ||
      comma == absl::string_view::npos) {
    ADD_FAILURE() << query << " is not label_values(SELECTOR, LABEL)";
    return query;
  }
  const size_t split = text.rfind(',');
  return absl::StrCat("count by (", text.substr(split + 1), ") (", text.substr(0, split), ")");
}

}  // namespace

std::vector<DashboardQuery> ReadDashboardQueries(const std::filesystem::path& directory,
                                                 const std::map<std::string, std::string>& values) {
  std::vector<std::pair<std::string, std::string>> edits;
  for (const auto& [name, value] : values) edits.emplace_back("$" + name, value);
  std::vector<DashboardQuery> queries;
  const auto add = [&](const std::string& place, const std::string& expression) {
    queries.push_back({place, absl::StrReplaceAll(expression, edits)});
    EXPECT_FALSE(absl::StrContains(queries.back().expression, "$")) << queries.back().expression;
  };
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    const std::string name = file.path().filename();
    const json board = json::parse(TextOf(file.path()));
    for (const json& panel : board.at("panels")) {
      if (panel.at("type") == "row") continue;
      for (const json& target : panel.at("targets")) {
        add(absl::StrCat(name, ": ", panel.at("title").get<std::string>(), ": ",
                         target.at("legendFormat").get<std::string>()),
            target.at("expr"));
      }
    }
    for (const json& annotation : board.at("annotations").at("list")) {
      add(absl::StrCat(name, ": ", annotation.at("name").get<std::string>()),
          annotation.at("expr"));
    }
    for (const json& variable : board.at("templating").at("list")) {
      if (variable.at("type") != "query") continue;
      add(absl::StrCat(name, ": variable ", variable.at("name").get<std::string>()),
          AsCount(variable.at("query").at("query")));
    }
  }
  return queries;
}

}  // namespace nibble
