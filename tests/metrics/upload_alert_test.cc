// The alert on checkpoints that cannot be copied to object storage: nothing answers at its address.
// Training goes on.
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "gtest/gtest.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

// Of the daemons that are started later.
bool SetStore(const std::string& address) {
  return setenv("AWS_ACCESS_KEY_ID", "key", 1) == 0 &&
         setenv("AWS_SECRET_ACCESS_KEY", "secret", 1) == 0 &&
         setenv("AWS_ENDPOINT_URL", absl::StrCat("http://", address).c_str(), 1) == 0;
}

class UploadAlert : public ScrapedCluster {
 protected:
  UploadAlert() : UploadAlert(SetStore("127.0.0.1:1")) {}

 private:
  explicit UploadAlert(bool)
      : ScrapedCluster({.workers = 1, .coordinator_flags = {"--object-store", "s3://runs/lab"}}) {}
};

TEST_F(UploadAlert, FiresWhileUploadsFailAndNothingWaitsForThem) {
  ASSERT_NE(prometheus_, nullptr);
  AwaitScrapes();
  EXPECT_FALSE(Fires("NibbleUploadsFail", "local"));
  const std::string job =
      bed_.Submit({.name = "train", .steps = kEndless, .every = 50, .keep_last = 2});
  AwaitFiring("NibbleUploadsFail", "local");
  const v1::JobEvent failed = bed_.ExpectEvent(job, [](const v1::JobEvent& event) {
    return event.text().find("upload failed: ") != std::string::npos;
  });
  EXPECT_NE(failed.text().find("127.0.0.1:1"), std::string::npos) << failed.text();
  // Steps, checkpoints and retention continue, which removes the checkpoint that was not uploaded.
  EXPECT_TRUE(Eventually([&] {
    const std::vector<v1::Checkpoint> all = bed_.Checkpoints(job);
    return std::none_of(all.begin(), all.end(), [&](const v1::Checkpoint& one) {
      return one.ref().step() <= failed.step();
    });
  }));
  const v1::JobUploads uploads = bed_.Describe(job).uploads();
  EXPECT_GE(uploads.failures(), 1);
  EXPECT_NE(uploads.error().find("127.0.0.1:1"), std::string::npos) << uploads.error();
  const int64_t step = bed_.Describe(job).checkpoint_step();
  bed_.ExpectStep(job, step + 200);
  EXPECT_GT(bed_.Describe(job).checkpoint_step(), step);
  EXPECT_LE(bed_.Checkpoints(job).size(), 4u);
  EXPECT_EQ(bed_.Describe(job).attempts(), 1);
  EXPECT_TRUE(Fires("NibbleUploadsFail", "local"));

  // Another process of the coordinator knows of the failures before it has tried.
  bed_.Kill(kCoordinatorRole);
  bed_.Restart(kCoordinatorRole);
  Await(
      "nibble_checkpoint_uploads_failing_jobs == 1 and on () time() - "
      "nibble_process_start_time_seconds{role=\"coordinator\"} < 30");
  EXPECT_GE(bed_.Describe(job).uploads().failures(), uploads.failures());
  AwaitFiring("NibbleUploadsFail", "local");
}

}  // namespace
}  // namespace nibble
