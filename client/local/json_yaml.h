// JSON written as YAML of the same content: what reads it back gets the same values.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_JSON_YAML_H_
#define NIBBLE_CLIENT_LOCAL_JSON_YAML_H_

#include <nlohmann/json.hpp>
#include <string>

namespace nibble {

// Block style, keys in the order of the value; texts that YAML would take for something else are
// quoted, those of several lines are literal blocks. Ends with a newline.
std::string YamlOf(const nlohmann::ordered_json& value);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_JSON_YAML_H_
