// Writes the JSON of stdin as YAML, as `-o yaml` does; for yaml_check.py.
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/shell/output.h"

int main() {
  const auto value = nlohmann::ordered_json::parse(std::cin, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    std::cerr << "yaml-of-json: stdin is not JSON\n";
    return 1;
  }
  std::cout << nibble::YamlOf(value);
  return 0;
}
