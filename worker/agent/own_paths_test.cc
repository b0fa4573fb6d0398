#include "worker/agent/own_paths.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class OwnPathsTest : public testing::Test {
 protected:
  std::vector<std::string> log_;
  OwnPaths paths_{{"/var/lib/nibble/data/", "/tmp/nibble-run", "relative", "/"},
                  [this](const std::string& text) { log_.push_back(text); }};
};

TEST_F(OwnPathsTest, APathBelowADirectoryIsRelativeToIt) {
  EXPECT_EQ(paths_.Hide("opening /var/lib/nibble/data/jobs/a-1/spec: No space; "
                        "'/tmp/nibble-run/s': refused"),
            "opening jobs/a-1/spec: No space; 's': refused");
  EXPECT_EQ(paths_.Hide("locking /var/lib/nibble/data: busy"), "locking data: busy");
  EXPECT_EQ(paths_.Hide("/var/lib/nibble/data/"), "data/");
}

TEST_F(OwnPathsTest, OtherPathsAreLeft) {
  for (const char* const text :
       {"/corpus/a.tokens", "/var/lib/nibble/database", "/mnt/var/lib/nibble/data/jobs/a-1",
        "relative/jobs", "/", "", "a /b c"}) {
    EXPECT_EQ(paths_.Hide(text), text);
  }
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(OwnPathsTest, AWholeTextIsLoggedOnceUntilManyOthersWere) {
  const auto text = [](int number) {
    return absl::StrCat("reading /var/lib/nibble/data/", number);
  };
  (void)paths_.Hide(text(0));
  (void)paths_.Hide(text(0));
  EXPECT_THAT(log_, ElementsAre(text(0)));
  for (int number = 1; number <= 64; ++number) (void)paths_.Hide(text(number));
  (void)paths_.Hide(text(64));
  EXPECT_EQ(log_.size(), 65u);
  (void)paths_.Hide(text(0));
  EXPECT_EQ(log_.size(), 66u);
}

}  // namespace
}  // namespace nibble
