#include "worker/infer/eval/choice_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const std::string& line) {
  const auto question = ParseChoiceQuestion(line);
  EXPECT_FALSE(question.ok()) << line;
  return std::string(question.status().message());
}

TEST(ChoiceFile, AQuestionIsReadUnderEitherOfItsNames) {
  const auto a = ParseChoiceQuestion(
      R"({"id": "q7", "context": "The sky is", "choices": ["blue", "green"], "gold": 1, "x": 2})");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->id, "q7");
  EXPECT_EQ(a->context, "The sky is");
  EXPECT_EQ(a->choices, (std::vector<std::string>{"blue", "green"}));
  EXPECT_EQ(a->gold, 1);
  const auto b = ParseChoiceQuestion(R"({"query": "", "choices": ["z"], "label": 0, "id": 12})");
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->id, "12");
  EXPECT_EQ(b->context, "");
}

TEST(ChoiceFile, WhatIsWrongIsNamedWithItsField) {
  EXPECT_THAT(Refusal("not json"), HasSubstr("is no JSON"));
  EXPECT_THAT(Refusal("[1]"), HasSubstr("is array, not an object"));
  EXPECT_THAT(Refusal(R"({"choices": ["a"], "gold": 0})"), HasSubstr("context: missing"));
  EXPECT_THAT(Refusal(R"({"context": "a", "query": "b", "choices": ["a"], "gold": 0})"),
              HasSubstr("query: says the same as context"));
  EXPECT_THAT(Refusal(R"({"query": 3, "choices": ["a"], "gold": 0})"),
              HasSubstr("query: is number, not a string"));
  EXPECT_THAT(Refusal(R"({"context": "a", "gold": 0})"), HasSubstr("choices: missing"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": "b", "gold": 0})"),
              HasSubstr("choices: is string, not an array"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": [], "gold": 0})"),
              HasSubstr("choices: 0 of them"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b", 1], "gold": 0})"),
              HasSubstr("choices[1]: is number, not a string"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b", ""], "gold": 0})"),
              HasSubstr("choices[1]: is empty"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"]})"), HasSubstr("gold: missing"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": 1})"),
              HasSubstr("gold: 1 is not in [0, 1), the choices"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "label": -1})"),
              HasSubstr("label: -1 is not in [0, 1)"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "label": 18446744073709551615})"),
              HasSubstr("label: 18446744073709551615 is not in"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": 0.5})"),
              HasSubstr("gold: 0.5 is no whole number"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": true})"),
              HasSubstr("gold: true is no whole number"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": 0, "id": []})"),
              HasSubstr("id: is array"));
  EXPECT_THAT(Refusal("{\"context\": \"\xff\"}"), HasSubstr("byte 13, 0xff, is no UTF-8"));
}

TEST(ChoiceFile, LinesAreNumberedAndEmptyOnesPassedOver) {
  const TempDirectory directory;
  const std::string path = directory.Path("q.jsonl");
  WriteFile(path,
            "{\"context\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n"
            "\n"
            "{\"context\": \"c\", \"choices\": [\"d\"], \"gold\": 0}\r\n"
            "{\"context\": \"e\", \"choices\": [\"f\"], \"gold\": 9}");
  auto reader = ChoiceReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((**reader->Next()).line, 1);
  EXPECT_EQ((**reader->Next()).line, 3);
  EXPECT_THAT(std::string(reader->Next().status().message()), HasSubstr(path + ":4: gold: 9"));
}

TEST(ChoiceFile, TheLastLineNeedsNoEnd) {
  const TempDirectory directory;
  WriteFile(directory.Path("q"), R"({"context": "a", "choices": ["b"], "gold": 0})");
  auto reader = ChoiceReader::Open(directory.Path("q"));
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader->Next()).has_value());
  EXPECT_FALSE((*reader->Next()).has_value());
}

TEST(ChoiceFile, AHugeLineIsRefusedWithItsNumber) {
  const TempDirectory directory;
  const std::string path = directory.Path("q.jsonl");
  WriteFile(path, "\n" + std::string(kMaxChoiceLine + 1, ' '));
  auto reader = ChoiceReader::Open(path);
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT(std::string(reader->Next().status().message()),
              HasSubstr(":2: the line has more than 16777216 bytes"));
}

TEST(ChoiceFile, AFileThatIsNotThereIsNotFound) {
  const TempDirectory directory;
  EXPECT_EQ(ChoiceReader::Open(directory.Path("none")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ChoiceReader::Open(directory.path()).status().message()),
              HasSubstr("is a directory"));
}

}  // namespace
}  // namespace nibble
