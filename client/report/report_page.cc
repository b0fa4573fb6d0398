#include "client/report/report_page.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/report/page_files.h"

namespace nibble {
namespace {

absl::string_view PageText(absl::string_view path) {
  for (const PageFile& file : PageFiles()) {
    if (file.path == path) return file.text;
  }
  return "";
}

}  // namespace

std::string ScriptJson(const nlohmann::ordered_json& data) {
  using Json = nlohmann::ordered_json;
  // These characters occur only inside of strings.
  return absl::StrReplaceAll(data.dump(-1, ' ', false, Json::error_handler_t::replace),
                             {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}});
}

std::string EscapedHtml(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string ReportPage(const nlohmann::ordered_json& data) {
  // One pass: a placeholder inside of a replacement is not replaced.
  return absl::StrReplaceAll(
      PageText("page/page.html"),
      {{"@TITLE@", EscapedHtml(data["title"].get<std::string>())},
       {"@STYLE@", PageText("page/style.css")},
       {"@SCRIPT@", absl::StrCat(PageText("page/charts.js"), PageText("page/page.js"))},
       {"@DATA@", ScriptJson(data)}});
}

}  // namespace nibble
