#include "client/local/json_yaml.h"

#include <string>

#include "client/local/yaml_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonYamlTest, WhatIsReadBackIsWhatWasWritten) {
  const Json value = Json::parse(R"({
    "id": "train-7", "count": 3, "share": 0.25, "big": 9007199254740993, "on": true, "off": null,
    "texts": ["", "yes", "No", "12", "1e3", "- x", "a: b", "#x", " x", "x ", "a\"b\\", "null", "~",
              "tab\there", "naïve → text", "{", "[a]", "*", "&a", "!t", "%", "@", "`", "a #b", "=",
              "0x10", ".5", "-", "?", "a\u0001b"],
    "empty": [], "none": {}, "nested": {"list": [{"a": 1, "b": [1, 2]}, [3, [4]], {}], "k 2": {"x": {}}},
    "spec": "name: x\n  deeper: 1\n\nlast: 2\n", "no_end": "a\nb", "two_ends": "a\n\n",
    "begins": "\n a", "a\nkey": 1, "carriage": "a\r\nb"})");
  EXPECT_EQ(JsonOfYaml(YamlOf(value)), value) << YamlOf(value);
}

TEST(JsonYamlTest, NumbersAreNumbersToEveryVersionOfYaml) {
  EXPECT_EQ(YamlOf(Json::parse(R"({"lr":1e-05,"big":1e+22,"loss":2.5,"steps":100})")),
            "lr: 1.0e-05\nbig: 1.0e+22\nloss: 2.5\nsteps: 100\n");
}

TEST(JsonYamlTest, WhatReadersRefuseIsEscaped) {
  EXPECT_EQ(YamlOf(Json::parse(R"({"a":"x\u007f\u0085\ny","b":"\u2028","day":"2026-11-22"})")),
            "a: \"x\\x7f\\x85\\ny\"\nb: \"\\u2028\"\nday: \"2026-11-22\"\n");
}

TEST(JsonYamlTest, TheTextIsAsPeopleWriteIt) {
  EXPECT_EQ(YamlOf(Json::parse(R"({"jobs":[{"id":"train-7","slots":[0,1]},{"id":"b"}],"x":[]})")),
            "jobs:\n"
            "  - id: train-7\n"
            "    slots:\n"
            "      - 0\n"
            "      - 1\n"
            "  - id: b\n"
            "x: []\n");
  EXPECT_EQ(YamlOf(Json::parse("[]")), "[]\n");
  EXPECT_EQ(YamlOf(Json::parse("\"7\"")), "\"7\"\n");
}

}  // namespace
}  // namespace nibble
