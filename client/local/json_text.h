// JSON as the command line prints it. Bytes that are no UTF-8 become U+FFFD.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_JSON_TEXT_H_
#define NIBBLE_CLIENT_LOCAL_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace nibble {

// With an indent of two; ends with a newline.
inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}
// One line, with its newline: an element of a stream.
inline std::string JsonLine(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_JSON_TEXT_H_
