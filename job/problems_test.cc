#include "job/problems.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const Problems& problems) { return std::string(problems.ToStatus().message()); }

TEST(ProblemsTest, NoneIsOk) { EXPECT_TRUE(Problems().ToStatus().ok()); }

TEST(ProblemsTest, OneIsOneLine) {
  Problems problems;
  problems.SetLine("optimizer.lr", 7);
  problems.Add("optimizer.lr", "-1 is not in (0, 10]");
  EXPECT_EQ(Message(problems), "line 7: optimizer.lr: -1 is not in (0, 10]");
  EXPECT_EQ(problems.ToStatus().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ProblemsTest, SeveralAreReportedInTheOrderOfTheirLines) {
  Problems problems;
  problems.SetLine("b", 9);
  problems.SetLine("a", 2);
  problems.Add("b", "wrong");
  problems.Add("a", "worse");
  problems.Add("nowhere", "missing");
  EXPECT_EQ(Message(problems),
            "3 problems:\n  nowhere: missing\n  line 2: a: worse\n  line 9: b: wrong");
}

TEST(ProblemsTest, AnUnsetFieldHasTheLineOfItsSection) {
  Problems problems;
  problems.SetLine("data", 3);
  problems.SetLine("data.train[1]", 5);
  problems.Add("data.train[1].path", "missing");
  problems.Add("data.sequence", "missing");
  EXPECT_EQ(Message(problems),
            "2 problems:\n  line 3: data.sequence: missing\n  line 5: data.train[1].path: missing");
}

TEST(ProblemsTest, TenAreReportedAndTheOthersCounted) {
  Problems problems;
  for (int i = 0; i < 12; ++i) problems.Add(absl::StrCat("field", i), "wrong");
  EXPECT_THAT(Message(problems), HasSubstr("12 problems:"));
  EXPECT_THAT(Message(problems), HasSubstr("field9: wrong"));
  EXPECT_THAT(Message(problems), Not(HasSubstr("field10")));
  EXPECT_THAT(Message(problems), EndsWith("… and 2 more"));
}

TEST(ProblemsTest, ANameIsNotRepeated) {
  Problems problems;
  problems.Add("recipe.set.fprop.block", absl::InvalidArgumentError("fprop.block: '1x3' is odd"));
  EXPECT_EQ(Message(problems), "recipe.set.fprop.block: '1x3' is odd");
  Problems other;
  other.Add("recipe", absl::InvalidArgumentError("layer 'x': too small"));
  EXPECT_EQ(Message(other), "recipe: layer 'x': too small");
}

TEST(ProblemsTest, SectionsAroundAndFieldsInsideAProblemAreNotSound) {
  Problems problems;
  problems.Add("data.train[0]", "wrong");
  EXPECT_FALSE(problems.Sound("data"));
  EXPECT_FALSE(problems.Sound("data.train"));
  EXPECT_FALSE(problems.Sound("data.train[0].path"));
  EXPECT_TRUE(problems.Sound("data.train[01]"));
  EXPECT_TRUE(problems.Sound("data.sequence"));
  EXPECT_TRUE(problems.Sound("dat"));
}

}  // namespace
}  // namespace nibble
