#include "worker/weights/checkpoint_weights.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(CheckpointNameTest, TheDigitsAfterTheLastAtAreTheStep) {
  const auto name = ParseCheckpointName("runs/a@1200");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->directory, "runs/a");
  EXPECT_EQ(name->step, 1200);
}

TEST(CheckpointNameTest, WithoutAStepTheNewestCheckpointIsMeant) {
  for (const std::string text : {"runs/a", "runs/me@home", "runs/a@", "runs/a@12x", "@x"}) {
    const auto name = ParseCheckpointName(text);
    ASSERT_TRUE(name.ok()) << text;
    EXPECT_EQ(name->directory, text);
    EXPECT_EQ(name->step, std::nullopt) << text;
  }
}

TEST(CheckpointNameTest, AMissingDirectoryAndAnImpossibleStepAreRefused) {
  EXPECT_FALSE(ParseCheckpointName("").ok());
  EXPECT_FALSE(ParseCheckpointName("@7").ok());
  EXPECT_FALSE(ParseCheckpointName("runs/a@99999999999999999999").ok());
}

}  // namespace
}  // namespace nibble
