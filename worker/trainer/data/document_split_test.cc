#include "worker/trainer/data/document_split.h"

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Split(std::string_view text, const DocumentSplit& split) {
  std::vector<std::string> documents;
  const absl::Status status = SplitDocuments(text, split, [&](std::string_view document) {
    documents.emplace_back(document);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return documents;
}

DocumentSplit Paragraphs(int64_t min_bytes) {
  return {.rule = SplitRule::kParagraphs, .min_bytes = min_bytes};
}
DocumentSplit Line(std::string delimiter) {
  return {.rule = SplitRule::kLine, .delimiter = std::move(delimiter)};
}

TEST(DocumentSplit, AFileIsOneDocumentAndAnEmptyFileNone) {
  EXPECT_THAT(Split("a\n\nb\n", {}), ElementsAre("a\n\nb\n"));
  for (const DocumentSplit& split : {DocumentSplit{}, Paragraphs(1), Line("--")}) {
    EXPECT_THAT(Split("", split), IsEmpty());
  }
}

TEST(DocumentSplit, ParagraphsAreCutAfterTheirBlankLines) {
  EXPECT_THAT(Split("a\n\nb\nc\n \t\r\n\nd", Paragraphs(1)),
              ElementsAre("a\n\n", "b\nc\n \t\r\n\n", "d"));
}

TEST(DocumentSplit, ParagraphsShorterThanTheBoundJoinTheirNeighbours) {
  EXPECT_THAT(Split("aa\n\nb\n\nccccc\n\nd\n", Paragraphs(5)),
              ElementsAre("aa\n\nb\n\n", "ccccc\n\nd\n"));
  EXPECT_THAT(Split("a\n\nb\n", Paragraphs(100)), ElementsAre("a\n\nb\n"));
}

TEST(DocumentSplit, ParagraphsPutTogetherAreTheFileAndNoneIsTooShort) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string text(random() % 400, ' ');
    for (char& c : text) c = "ab \n\n\n\t"[random() % 7];
    const int64_t min_bytes = 1 + random() % 60;
    std::string together;
    for (const std::string& document : Split(text, Paragraphs(min_bytes))) {
      if (static_cast<int64_t>(text.size()) >= min_bytes) {
        EXPECT_GE(static_cast<int64_t>(document.size()), min_bytes);
      }
      together += document;
    }
    ASSERT_EQ(together, text);
  }
}

TEST(DocumentSplit, DelimiterLinesSeparateAndVanish) {
  EXPECT_THAT(Split("--\na\nb\n--\n--\r\nc--\n --\n--", Line("--")),
              ElementsAre("a\nb\n", "c--\n --\n"));
  EXPECT_THAT(Split("a\n\f\nb\n", Line("\f")), ElementsAre("a\n", "b\n"));
}

TEST(DocumentSplit, TheSinksErrorStopsTheSplit) {
  for (const DocumentSplit& split : {DocumentSplit{}, Paragraphs(1), Line("-")}) {
    int calls = 0;
    const absl::Status status = SplitDocuments("a\n\n-\nb\n\n-\nc", split, [&](std::string_view) {
      ++calls;
      return absl::AbortedError("enough");
    });
    EXPECT_EQ(status, absl::AbortedError("enough"));
    EXPECT_EQ(calls, 1);
  }
}

TEST(DocumentSplit, RulesOutOfBoundsAreRefusedByName) {
  EXPECT_THAT(std::string(Validate(Paragraphs(0)).message()), HasSubstr("min_bytes is 0"));
  for (const char* delimiter : {"", "a\nb", "a\r"}) {
    EXPECT_THAT(std::string(Validate(Line(delimiter)).message()), HasSubstr("delimiter"));
  }
}

}  // namespace
}  // namespace nibble
