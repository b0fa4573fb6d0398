#include "job/spec_paths.h"

#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(MakePathsAbsoluteTest, RelativePathsOfWhatIsReadGoBelowTheDirectory) {
  JobSpec spec;
  spec.data.train = {{.path = "corpus/a.tokens"}, {.path = "/usr/share/b.txt"}};
  spec.data.validation = {{.name = "v", .path = "../v.tokens"}};
  spec.data.tokenizer_model = "./pieces.model";
  spec.init_from.path = "runs/base";
  spec.output.directory = "runs";
  EXPECT_TRUE(MakePathsAbsolute("/home/ann/here", spec));
  EXPECT_EQ(spec.data.train[0].path, "/home/ann/here/corpus/a.tokens");
  EXPECT_EQ(spec.data.train[1].path, "/usr/share/b.txt");
  EXPECT_EQ(spec.data.validation[0].path, "/home/ann/v.tokens");
  EXPECT_EQ(spec.data.tokenizer_model, "/home/ann/here/pieces.model");
  EXPECT_EQ(spec.init_from.path, "/home/ann/here/runs/base");
  EXPECT_EQ(spec.output.directory, "runs");
}

TEST(MakePathsAbsoluteTest, ASpecWithoutRelativePathsStaysAsItIs) {
  JobSpec spec;
  spec.data.train = {{.path = "/usr/share/b.txt"}};
  const JobSpec before = spec;
  EXPECT_FALSE(MakePathsAbsolute("/home/ann/here", spec));
  EXPECT_EQ(spec, before);
}

}  // namespace
}  // namespace nibble
