// For tests: what a program reads that is given YAML.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_LOCAL_YAML_TESTING_H_
#define NIBBLE_CLIENT_LOCAL_YAML_TESTING_H_

#include <nlohmann/json.hpp>
#include <string>

namespace nibble {

// Read by yaml-cpp. Texts that JSON has a value for (7, true, null) are that, unless in quotes.
nlohmann::ordered_json JsonOfYaml(const std::string& yaml);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_YAML_TESTING_H_
