#include "worker/trainer/loop/job_data.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/loop/run_state.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(JobData, ADirectoryThatCannotBeMadeIsNoErrorToTryAgainFor) {
  const TempDirectory directory;
  WriteFile(directory.Path("text.txt"), "some text");
  WriteFile(directory.Path("data"), "not a directory");
  JobSpec spec;
  spec.model.vocab = 512;
  spec.data.train = {{.path = directory.Path("text.txt")}};
  const absl::Status status = JobData::Prepare(spec, directory.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("data: cannot make "));
}

TEST(JobData, DocumentsThatWereSkippedAreReported) {
  const TempDirectory directory;
  const std::string path = directory.Path("text.jsonl");
  WriteFile(path, "{\"text\": \"a\\u0000\"}\n{\"text\": \"b\"}\n");
  JobSpec spec;
  spec.model.vocab = 512;
  spec.data.train = {{.path = path}};
  spec.data.validation = {{.name = "v", .path = path}};
  const auto notices = JobData::Prepare(spec, directory.path());
  ASSERT_TRUE(notices.ok()) << notices.status();
  ASSERT_EQ(notices->size(), 1u);  // training and validation share the shards
  EXPECT_EQ(notices->front(),
            "data.train[0]: 1 document with a zero byte was skipped, the first "
            "at " +
                path + ", line 1: byte 1 of its field 'text'");
}

TEST(DecisiveDifference, TokenizersAreComparedByTheirLabels) {
  JobSpec then, now;
  then.data.tokenizer_label = now.data.tokenizer_label = "sp:0123456789abcdef";
  then.data.tokenizer = JobTokenizer::kSentencePiece;
  then.data.tokenizer_model = "/a/model";
  EXPECT_EQ(DecisiveDifference(then, now), "");
  now.data.tokenizer_label = "bytes";
  EXPECT_EQ(DecisiveDifference(then, now), "data");
  // A checkpoint from before there were labels.
  then = {};
  then.data.tokenizer = JobTokenizer::kBytes;
  EXPECT_EQ(DecisiveDifference(then, now), "");
  then.data.tokenizer = JobTokenizer::kSentencePiece;
  EXPECT_EQ(DecisiveDifference(then, now), "data");
}

}  // namespace
}  // namespace nibble
