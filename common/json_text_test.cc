#include "common/json_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace nibble {
namespace {

using Json = nlohmann::json;

TEST(ParseJsonObject, BareInfinitiesReadAsNewerFilesSpellThem) {
  const auto older = ParseJsonObject("f", R"({"a": [0.0, Infinity], "b": -Infinity, "c": NaN})");
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ((*older)["a"][1], Json({{"__float__", "Infinity"}}));
  EXPECT_EQ((*older)["b"], Json({{"__float__", "-Infinity"}}));
  EXPECT_EQ((*older)["c"], Json({{"__float__", "NaN"}}));
}

TEST(ParseJsonObject, WordsInsideStringsStay) {
  const auto object = ParseJsonObject("f", R"({"a": "to \"Infinity\" and NaN {[{["})");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ((*object)["a"], "to \"Infinity\" and NaN {[{[");
}

TEST(ParseJsonObject, WhatIsNoObjectIsRefusedByTheFilesName) {
  for (const char* text : {"", "[1]", "3", "{\"a\": }", "{\"a\": 1} 2", "{\"a\": Infinit}"}) {
    const auto object = ParseJsonObject("some.json", text);
    EXPECT_EQ(object.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(object.status().message().find("some.json: "), 0u) << object.status();
  }
}

TEST(ParseJsonObject, DepthIsBounded) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_TRUE(ParseJsonObject("f", nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJsonObject("f", nested(kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(ParseJsonObject("f", std::string(1 << 20, '[')).ok());
}

TEST(NestsDeeperThan, CountsWhatIsOpenAtOnceOutsideStrings) {
  EXPECT_FALSE(NestsDeeperThan(2, R"([{}, {}, [], {"a": "[[[\"[[[\\"}])"));
  EXPECT_TRUE(NestsDeeperThan(1, R"([{}])"));
  EXPECT_TRUE(NestsDeeperThan(2, R"(["\\", [[]]])"));
  EXPECT_TRUE(NestsDeeperThan(100, std::string(1 << 20, '[')));
  EXPECT_FALSE(NestsDeeperThan(0, "\"\\"));
}

TEST(ParseJsonObject, AKeyThatIsThereTwiceIsNamed) {
  const auto object = ParseJsonObject("f", R"({"a": {"b": 1}, "c": {"b": 1, "b": 2}})");
  EXPECT_NE(object.status().message().find("\"b\""), absl::string_view::npos) << object.status();
  EXPECT_TRUE(ParseJsonObject("f", R"({"a": {"b": 1}, "b": {"b": 1}})").ok());
}

TEST(BriefJson, IsShortAndPrintable) {
  EXPECT_EQ(BriefText("a\n\xc3\xa9"), "\"a\\n\\u00e9\"");
  EXPECT_LT(BriefText(std::string(1000, 'x')).size(), 100u);
  EXPECT_NE(BriefText("\xff"), "");  // not UTF-8
}

}  // namespace
}  // namespace nibble
