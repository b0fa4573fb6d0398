#include "worker/interop/config_fields.h"

#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"

namespace nibble {
namespace {

using Json = nlohmann::json;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ConfigFields, AFieldThatNobodyAskedForIsRefusedWithItsValue) {
  const Json object = {{"size", 3}, {"novelty", 7}};
  ConfigFields fields(object, "f");
  EXPECT_EQ(fields.Size("size", 10), 3);
  EXPECT_EQ(Message(fields.Finish()), "f: \"novelty\": 7 is of a field that is not known");
}

TEST(ConfigFields, NullIsAsAbsent) {
  const Json object = {{"size", nullptr}, {"flag", nullptr}, {"novelty", nullptr}};
  ConfigFields fields(object, "f");
  EXPECT_EQ(fields.Size("size", 10, 4), 4);
  EXPECT_TRUE(fields.Bool("flag", true));
  EXPECT_TRUE(fields.Finish().ok());
}

TEST(ConfigFields, AMissingFieldIsNamed) {
  const Json object = Json::object();
  ConfigFields fields(object, "f");
  fields.Size("size", 10);
  EXPECT_EQ(Message(fields.Finish()), "f: size is missing");
}

TEST(ConfigFields, SizesOutsideTheirBoundsAreRefused) {
  for (const Json& value : {Json(0), Json(-1), Json(11), Json(3.0), Json("3"), Json(true),
                            Json(~uint64_t{0}), Json(int64_t{1} << 40)}) {
    const Json object = {{"size", value}};
    ConfigFields fields(object, "f");
    fields.Size("size", 10);
    EXPECT_EQ(Message(fields.status()),
              "f: size: " + value.dump() + " is not an integer in [1, 10]");
  }
}

TEST(ConfigFields, NumbersOutsideTheirBoundsAreRefused) {
  for (const Json& value : {Json(-0.1), Json(1.5), Json("x"), Json({{"__float__", "NaN"}})}) {
    const Json object = {{"x", value}};
    ConfigFields fields(object, "f");
    fields.Number("x", 0, 1);
    EXPECT_FALSE(fields.status().ok()) << value;
  }
}

TEST(ConfigFields, WhatMustBeIsSaid) {
  const Json object = {{"window", 512}};
  ConfigFields fields(object, "f");
  fields.Must("window", nullptr);
  EXPECT_EQ(Message(fields.Finish()), "f: window: 512 is not supported; it must be null");
}

TEST(ConfigFields, LeavingAFieldOutMeansItsDefault) {
  const Json object = Json::object();
  ConfigFields fields(object, "f");
  fields.Must("bias", true, /*absent=*/false);
  EXPECT_EQ(Message(fields.status()), "f: bias: false is not supported; it must be true");
}

TEST(ConfigFields, TheFirstErrorStays) {
  const Json object = {{"a", 0}, {"b", "x"}};
  ConfigFields fields(object, "f");
  fields.Size("a", 10);
  fields.Bool("b", false);
  EXPECT_NE(Message(fields.Finish()).find("a: 0"), std::string::npos);
}

}  // namespace
}  // namespace nibble
