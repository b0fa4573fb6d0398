#include "client/local/quantize_command.h"

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/local/command_testing.h"
#include "client/local/yaml_testing.h"
#include "common/safetensors/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class QuantizeCommandTest : public testing::Test {
 protected:
  QuantizeCommandTest() {
    const std::vector<float> values(32, 1.5f);
    SafetensorsWriter writer;
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    EXPECT_TRUE(writer.AddTensor("w", FileDType::kF32, {2, 16}, {bytes, 128}).ok());
    EXPECT_TRUE(writer.AddTensor("bias", FileDType::kF32, {32}, {bytes, 128}).ok());
    EXPECT_TRUE(writer.Write(in_).ok());
  }

  Outcome Quantize(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"quantize", in_, out_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCommand(AddQuantizeCommand, arguments);
  }

  const std::string in_ = testing::TempDir() + "quantize_in.safetensors";
  const std::string out_ = testing::TempDir() + "quantize_out.safetensors";
};

TEST_F(QuantizeCommandTest, TheReportIsATableJsonOrYaml) {
  const Outcome table = Quantize({"--format", "nvfp4"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("rel.error"));
  EXPECT_THAT(table.err, HasSubstr("tensor 'bias' is copied: has 1 dimensions, not 2"));
  const Outcome json = Quantize({"--format", "nvfp4", "-o", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json report = Json::parse(json.out);
  EXPECT_EQ(report["tensors"][0]["name"], "w");
  EXPECT_EQ(report["tensors"][0]["amax"], 1.5);
  ASSERT_EQ(report["copied"].size(), 1u);
  EXPECT_EQ(report["copied"][0]["name"], "bias");
  EXPECT_EQ(report["copied"][0]["reason"], "has 1 dimensions, not 2");
  const Outcome yaml = Quantize({"--format", "nvfp4", "-o", "yaml"});
  ASSERT_EQ(yaml.exit_code, 0) << yaml.err;
  EXPECT_EQ(JsonOfYaml(yaml.out), report);
}

TEST_F(QuantizeCommandTest, WhatIsWrongNamesItsFieldOnStderr) {
  const Outcome format = Quantize({"--format", "nvfp5"});
  EXPECT_EQ(format.exit_code, 1);
  EXPECT_THAT(format.out, IsEmpty());
  EXPECT_THAT(format.err, HasSubstr("nibble quantize: format: 'nvfp5' is not one of nvfp4"));
  EXPECT_EQ(Quantize({"--format", "nvfp4", "-o", "xml"}).exit_code, 2);
  std::filesystem::remove(in_);
  EXPECT_EQ(Quantize({"--format", "nvfp4"}).exit_code, 102);
}

}  // namespace
}  // namespace nibble
