#include "common/safetensors/header.h"

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/safetensors/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble::safetensors_internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string HeaderError(std::string_view text) {
  const auto header = ParseHeader(text);
  if (header.ok()) return "accepted";
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(header.status().message());
}

// The error for one tensor "w" with these fields.
std::string EntryError(const std::string& fields) {
  return HeaderError(absl::StrCat("{\"w\":{", fields, "}}"));
}

std::string ShapeError(const std::string& shape) {
  return EntryError(absl::StrCat("\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":", shape));
}

std::string OffsetsError(const std::string& offsets) {
  return EntryError(absl::StrCat("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":", offsets));
}

TEST(SafetensorsHeader, EntriesAndMetadataAreRead) {
  const auto header =
      ParseHeader(R"({"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                  R"("__metadata__":{"format":"pt"},)"
                  R"("\u00e9":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}   )");
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->entries.size(), 2u);
  EXPECT_EQ(header->entries[0].name, "w");
  EXPECT_EQ(header->entries[0].dtype, FileDType::kBF16);
  EXPECT_EQ(header->entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->entries[0].begin, 4u);
  EXPECT_EQ(header->entries[0].end, 16u);
  EXPECT_EQ(header->entries[1].name, "\u00e9");
  EXPECT_TRUE(header->entries[1].shape.empty());
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, TextThatDoesNotBeginWithABraceIsRefused) {
  EXPECT_THAT(HeaderError(""), HasSubstr("0 bytes"));
  EXPECT_THAT(HeaderError(" {}"), HasSubstr("must begin with '{'"));
  EXPECT_THAT(HeaderError("[]"), HasSubstr("begin with \"[\""));
  EXPECT_THAT(HeaderError("\xEF\xBB\xBF{}"), HasSubstr("must begin with '{'"));
}

TEST(SafetensorsHeader, BrokenJsonIsRefusedNamingTheByte) {
  EXPECT_THAT(HeaderError("{"), HasSubstr("not valid JSON at byte 2"));
  EXPECT_THAT(HeaderError("{} x"), HasSubstr("not valid JSON at byte 4"));
  EXPECT_THAT(HeaderError("{}{}"), HasSubstr("not valid JSON at byte 3"));
  EXPECT_THAT(HeaderError("{/**/}"), HasSubstr("not valid JSON at byte 2"));
  EXPECT_THAT(OffsetsError("[0,1e999]"), HasSubstr("1e999"));
}

TEST(SafetensorsHeader, BytesThatAreNotUtf8AreRefused) {
  EXPECT_THAT(HeaderError("{\"\xff\":{}}"), HasSubstr("ill-formed UTF-8"));
  EXPECT_THAT(HeaderError("{\"\xc0\xaf\":{}}"), HasSubstr("ill-formed UTF-8"));
  EXPECT_THAT(HeaderError("{\"\xed\xa0\x80\":{}}"), HasSubstr("ill-formed UTF-8"));
  EXPECT_THAT(HeaderError("{\"\\ud800\":{}}"), HasSubstr("surrogate"));
}

TEST(SafetensorsHeader, BytesAfterANulAreNotSilentlyIgnored) {
  EXPECT_THAT(HeaderError(std::string_view("{}\0garbage", 10)), HasSubstr("NUL at byte 2 of 10"));
  EXPECT_THAT(HeaderError(std::string_view("{}\0", 3)), HasSubstr("NUL at byte 2 of 3"));
}

TEST(SafetensorsHeader, MetadataThatIsNotAnObjectOfStringsIsRefused) {
  EXPECT_THAT(HeaderError(R"({"__metadata__":7})"), HasSubstr("__metadata__ must be an object"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":[]})"), HasSubstr("__metadata__ must be an object"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":{"k":1}})"),
              HasSubstr("key \"k\" must have a string"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":{"k":null}})"), HasSubstr("found null"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":{"k":{}}})"), HasSubstr("found an object"));
}

TEST(SafetensorsHeader, RepeatedMetadataIsRefused) {
  EXPECT_THAT(HeaderError(R"({"__metadata__":{},"__metadata__":{}})"),
              HasSubstr("__metadata__ occurs twice"));
  EXPECT_THAT(HeaderError(R"({"__metadata__":{"k":"a","k":"b"}})"),
              HasSubstr("\"k\" occurs twice"));
}

TEST(SafetensorsHeader, EntryThatIsNotAnObjectIsRefused) {
  EXPECT_THAT(HeaderError(R"({"w":[]})"),
              HasSubstr("tensor \"w\" must be an object, found an array"));
  EXPECT_THAT(HeaderError(R"({"w":true})"), HasSubstr("found true"));
  EXPECT_THAT(HeaderError(R"({"w":-3})"), HasSubstr("found the number -3"));
  EXPECT_THAT(HeaderError(R"({"w":"x"})"), HasSubstr("found the string \"x\""));
}

TEST(SafetensorsHeader, MissingFieldIsRefusedByName) {
  EXPECT_THAT(EntryError(R"("shape":[],"data_offsets":[0,1])"),
              HasSubstr("tensor \"w\": field dtype is missing"));
  EXPECT_THAT(EntryError(R"("dtype":"U8","data_offsets":[0,1])"), HasSubstr("field shape"));
  EXPECT_THAT(EntryError(R"("dtype":"U8","shape":[])"), HasSubstr("field data_offsets"));
}

TEST(SafetensorsHeader, RepeatedFieldIsRefused) {
  EXPECT_THAT(EntryError(R"("dtype":"U8","dtype":"U8")"),
              HasSubstr("tensor \"w\": field dtype occurs twice"));
  EXPECT_THAT(EntryError(R"("shape":[],"shape":[])"), HasSubstr("shape occurs twice"));
  EXPECT_THAT(EntryError(R"("data_offsets":[0,1],"data_offsets":[0,1])"),
              HasSubstr("data_offsets occurs twice"));
}

TEST(SafetensorsHeader, UnknownFieldIsRefusedByName) {
  EXPECT_THAT(EntryError(R"("strides":[1])"),
              HasSubstr("tensor \"w\": field \"strides\" is not one of"));
}

TEST(SafetensorsHeader, UnknownDTypeIsRefusedByName) {
  EXPECT_THAT(EntryError(R"("dtype":"F4")"), HasSubstr("tensor \"w\": dtype \"F4\" is not known"));
  EXPECT_THAT(EntryError(R"("dtype":"bf16")"), HasSubstr("\"bf16\""));
  EXPECT_THAT(EntryError(R"("dtype":7)"), HasSubstr("dtype must be a string, found the number 7"));
}

TEST(SafetensorsHeader, NumbersThatAreNotCountsAreRefusedByValue) {
  EXPECT_THAT(ShapeError("[-1]"), AllOf(HasSubstr("tensor \"w\": shape"), HasSubstr("holds -1,")));
  EXPECT_THAT(ShapeError("[1.5]"), HasSubstr("holds 1.5,"));
  EXPECT_THAT(ShapeError("[1e3]"), HasSubstr("holds 1e3,"));
  EXPECT_THAT(ShapeError("[-0]"), HasSubstr("not an integer"));
  EXPECT_THAT(ShapeError("[9223372036854775808]"),
              AllOf(HasSubstr("9223372036854775808"), HasSubstr("to 9223372036854775807")));
  EXPECT_THAT(OffsetsError("[0,18446744073709551616]"),
              AllOf(HasSubstr("tensor \"w\": data_offsets"), HasSubstr("18446744073709551616"),
                    HasSubstr("to 18446744073709551615")));
  EXPECT_THAT(OffsetsError("[-1,1]"), HasSubstr("holds -1,"));
}

TEST(SafetensorsHeader, ArraysOfAnythingButNumbersAreRefused) {
  EXPECT_THAT(ShapeError("{}"), HasSubstr("shape must be an array, found an object"));
  EXPECT_THAT(ShapeError("[[1]]"), HasSubstr("found an array"));
  EXPECT_THAT(ShapeError("[\"1\"]"), HasSubstr("found the string \"1\""));
  EXPECT_THAT(OffsetsError("[null,1]"), HasSubstr("found null"));
  EXPECT_THAT(OffsetsError("1"), HasSubstr("data_offsets must be an array"));
}

TEST(SafetensorsHeader, OffsetsMustBeTwo) {
  EXPECT_THAT(OffsetsError("[]"), HasSubstr("holds 0 numbers, must hold 2"));
  EXPECT_THAT(OffsetsError("[1]"), HasSubstr("holds 1 numbers, must hold 2"));
  EXPECT_THAT(OffsetsError("[0,1,2]"), HasSubstr("third number 2"));
}

TEST(SafetensorsHeader, RankAboveTheBoundIsRefused) {
  std::string shape = "[1";
  for (size_t i = 1; i < kMaxRank; ++i) shape += ",1";
  EXPECT_EQ(ShapeError(shape + "]"), "accepted");
  EXPECT_THAT(ShapeError(shape + ",1]"), HasSubstr("rank is above the bound of 32"));
}

TEST(SafetensorsHeader, DeepNestingIsRefusedAtItsFirstLevel) {
  EXPECT_THAT(HeaderError("{\"w\":" + std::string(1 << 20, '[')), HasSubstr("found an array"));
}

TEST(SafetensorsHeader, TensorCountAboveTheBoundIsRefused) {
  std::string text = "{";
  for (size_t i = 0; i < kMaxTensors; ++i) {
    absl::StrAppend(&text, "\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)");
  }
  text += R"("last":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  EXPECT_THAT(HeaderError(text), HasSubstr("\"last\" is one above the bound of 1048576 tensors"));
}

TEST(SafetensorsHeader, MetadataCountAboveTheBoundIsRefused) {
  std::string text = R"({"__metadata__":{)";
  for (size_t i = 0; i < kMaxMetadataEntries; ++i) absl::StrAppend(&text, "\"", i, "\":\"\",");
  text += R"("last":""}})";
  EXPECT_THAT(HeaderError(text), HasSubstr("\"last\" is one above the bound of 65536 entries"));
}

TEST(SafetensorsHeader, LongNamesAreCutInMessagesAtACharacter) {
  std::string name;
  for (int i = 0; i < 1000; ++i) name += "\u20ac";  // three bytes each
  const std::string error = HeaderError("{\"" + name + "\":0}");
  EXPECT_THAT(error, HasSubstr(name.substr(0, 126) + "\"... (3000 bytes)"));
}

}  // namespace
}  // namespace nibble::safetensors_internal
