#include "client/shell/testing.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "client/shell/output.h"
#include "gtest/gtest.h"
#include "yaml-cpp/yaml.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// Scalars are texts in YAML; those that JSON can parse become JSON values.
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

Outcome RunCommand(const std::function<void(Command app, int& exit_code)>& add,
                   const std::vector<std::string>& arguments) {
  CommandLine app("test", "nibble");
  app.RequireSubcommand();
  Outcome outcome;
  add(app, outcome.exit_code);
  std::vector<const char*> argv = {"nibble"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const std::optional<int> ended =
      app.Parse(static_cast<int>(argv.size()), argv.data(), kExitUsage);
  if (ended) outcome.exit_code = *ended;
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

Json JsonOfYaml(const std::string& yaml) { return Read(YAML::Load(yaml)); }

}  // namespace nibble
