// A report as one HTML file that needs nothing else: style, script and data are in it. It makes no
// request, and its Content-Security-Policy forbids any.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_REPORT_PAGE_H_
#define NIBBLE_CLIENT_REPORT_REPORT_PAGE_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace nibble {

// `data`: of ReportData(). No text of it is markup: it is JSON in which no '<' occurs, and the
// script sets it as text.
std::string ReportPage(const nlohmann::ordered_json& data);

// JSON for a script element: on one line, with '<', '>' and '&' escaped, so that nothing in it can
// end the element or begin a comment. Bytes that are not UTF-8 become U+FFFD.
std::string ScriptJson(const nlohmann::ordered_json& data);

// The text with '&', '<', '>' and both quotes escaped.
std::string EscapedHtml(const std::string& text);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_REPORT_PAGE_H_
