#include "client/local/yaml_testing.h"

#include "yaml-cpp/yaml.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// Every scalar as its text: YAML itself does not say what is a number.
Json Read(const YAML::Node& node) {
  Json value;
  if (node.IsNull()) {
    value = nullptr;
  } else if (node.IsMap()) {
    value = Json::object();
    for (const auto& entry : node) value[entry.first.as<std::string>()] = Read(entry.second);
  } else if (node.IsSequence()) {
    value = Json::array();
    for (const auto& entry : node) value.push_back(Read(entry));
  } else if (node.Tag() == "!") {  // in quotes: a text
    value = node.Scalar();
  } else {
    value = Json::parse(node.Scalar(), nullptr, false);
    if (value.is_discarded()) value = node.Scalar();
  }
  return value;
}

}  // namespace

Json JsonOfYaml(const std::string& yaml) { return Read(YAML::Load(yaml)); }

}  // namespace nibble
