#include "worker/trainer/report/events_reference.h"

#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(EventsReferenceTest, ThePageIsGeneratedFromTheEvents) {
  std::ifstream file("docs/reference/events.md", std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(page, EventsReferenceMarkdown())
      << "bazel run //worker/trainer/report:write_events_reference > docs/reference/events.md";
}

TEST(EventsReferenceTest, EventsHaveTablesOfTheirFields) {
  const std::string page = EventsReferenceMarkdown();
  EXPECT_THAT(page, testing::HasSubstr("\n## step\nA step is done"));
  EXPECT_THAT(page, testing::HasSubstr("| `loss` | number | nats per token | mean loss over"));
  EXPECT_THAT(page, testing::HasSubstr("| `updated` | true or false |"));
  EXPECT_THAT(page, testing::HasSubstr("| `changes` | list of texts |"));
  EXPECT_THAT(page, testing::HasSubstr("| `seed` | whole number |"));
}

}  // namespace
}  // namespace nibble
