#include "job/reference.h"

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_fields.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(ReferenceTest, ThePageMatchesTheFieldDescriptions) {
  std::ifstream file("docs/reference/job-spec.md", std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(page, JobReferenceMarkdown())
      << "bazel run //job:write_reference > docs/reference/job-spec.md";
}

TEST(ReferenceTest, EveryFieldHasARowAndAMeaning) {
  const std::string page = JobReferenceMarkdown();
  std::set<std::string> paths;
  for (const FieldDoc& doc : JobFieldDocs()) {
    EXPECT_TRUE(paths.insert(doc.path).second) << doc.path;
    EXPECT_THAT(page, HasSubstr(absl::StrCat("| `", doc.path, "` | ", doc.type)));
    EXPECT_FALSE(doc.meaning.empty()) << doc.path;
    EXPECT_TRUE(doc.required || doc.type == kSectionType || !doc.allowed.empty() ||
                doc.type == "true or false")
        << doc.path;
  }
  EXPECT_GE(paths.size(), 70u);
}

}  // namespace
}  // namespace nibble
