// What a user reads about uploads: where the copies are, or why there are none.
#include "client/remote/upload_text.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr int64_t kUploadsShown = 1'000'000'000;

v1::CheckpointRef RefAt(int64_t step) {
  v1::CheckpointRef ref;
  ref.set_job("train-7");
  ref.set_step(step);
  ref.set_attempt(1);
  return ref;
}

TEST(UploadTextTest, CopiesAndTheUploadUnderWayAreNamed) {
  v1::JobUploads uploads;
  uploads.set_place("s3://runs/lab/train-7");
  *uploads.mutable_open() = RefAt(250);
  EXPECT_EQ(UploadsText(uploads, kUploadsShown),
            "no copy at s3://runs/lab/train-7 yet\nstep 250 is being uploaded");
  *uploads.add_copies() = RefAt(250);
  *uploads.add_copies() = RefAt(300);
  uploads.set_uploaded_unix_ms(kUploadsShown - 120'000);
  *uploads.mutable_open() = RefAt(350);
  EXPECT_EQ(UploadsText(uploads, kUploadsShown),
            "the newest copy is of step 300, uploaded 2m00s ago; 2 checkpoints at "
            "s3://runs/lab/train-7\nstep 350 is being uploaded");
  EXPECT_EQ(UploadWord(uploads, RefAt(200)), "-");
  EXPECT_EQ(UploadWord(uploads, RefAt(250)), "uploaded");
  EXPECT_EQ(UploadWord(uploads, RefAt(350)), "under way");
}

TEST(UploadTextTest, AFailureIsShownWithItsReasonAndTheNextTry) {
  v1::JobUploads uploads;
  uploads.set_place("s3://runs/lab/train-7");
  uploads.set_failures(1);
  *uploads.mutable_failed() = RefAt(350);
  uploads.set_failed_unix_ms(kUploadsShown - 10'000);
  uploads.set_error("PUT s3://runs: 403 AccessDenied");
  uploads.set_retry_unix_ms(kUploadsShown + 50'000);
  EXPECT_EQ(UploadsText(uploads, kUploadsShown),
            "no copy at s3://runs/lab/train-7 yet\n"
            "the last upload, of step 350, 10s ago, has failed: PUT s3://runs: 403 AccessDenied\n"
            "the next try is due in 50s");
  uploads.set_failures(3);
  uploads.set_retry_unix_ms(kUploadsShown - 1);
  EXPECT_EQ(UploadsText(uploads, kUploadsShown),
            "no copy at s3://runs/lab/train-7 yet\n"
            "3 uploads in a row have failed, the last one, of step 350, 10s ago: "
            "PUT s3://runs: 403 AccessDenied\n"
            "the next try is due");
  EXPECT_EQ(UploadWord(uploads, RefAt(350)), "failed");
  *uploads.mutable_open() = RefAt(350);
  EXPECT_EQ(UploadWord(uploads, RefAt(350)), "under way");
}

}  // namespace
}  // namespace nibble
