// Alerts of full disks: small file systems of their own, which the test fills.
#include <cstddef>
#include <string>

#include "gtest/gtest.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

class FullDisks : public ScrapedCluster {
 protected:
  FullDisks()
      : ScrapedCluster({.workers = 2,
                        .disks = EnterOwnMounts(),
                        .coordinator_disk = EnterOwnMounts(),
                        .coordinator_flags = {"--copies", "2"}}) {}
};

TEST_F(FullDisks, OfAWorkerThenOfTheCoordinatorFireAlertsThatEndWithTheCause) {
  if (!EnterOwnMounts()) GTEST_SKIP() << "this machine does not permit mounting a small disk";
  ASSERT_NE(prometheus_, nullptr);
  AwaitScrapes();
  const std::string job =
      bed_.Submit({.name = "train", .steps = kEndless, .every = kEndless - 1, .keep_last = 1});
  bed_.ExpectStep(job, 20);
  // The worker that does not run the job cannot store its copy of the checkpoint.
  const std::string other = IdleWorker();
  ASSERT_FALSE(other.empty());
  bed_.SetFull(other, true);
  (void)bed_.AskAbout(job, kCheckpointJob);
  AwaitFiring("NibbleDiskNearlyFull", other);
  AwaitFiring("NibbleCheckpointCopiesMissing", "local");
  EXPECT_FALSE(Fires("NibbleStoreUnhealthy", "local"));
  bed_.SetFull(other, false);
  bed_.ExpectCopied(job);
  AwaitResolved("NibbleDiskNearlyFull", other);
  AwaitResolved("NibbleCheckpointCopiesMissing", "local");

  bed_.SetFull(kCoordinatorRole, true);
  AwaitFiring("NibbleDiskNearlyFull", kCoordinatorRole);
  // The store has reserved space for its log, which long specs use up; then changes are refused.
  const std::string comment = "# " + std::string(size_t{512} << 10, '.') + "\n";
  EXPECT_TRUE(Eventually([&] {
    v1::SubmitJobRequest submit;
    submit.set_spec_yaml(
        comment + TinyJob{.name = "too-large", .ranks = 64, .batch = 64}.Yaml(bed_.corpus()));
    submit.set_request_id(bed_.NewId());
    v1::SubmitJobResponse submitted;
    return !bed_.stub().Call(kSubmitJob, submit, &submitted).ok();
  }));
  AwaitFiring("NibbleStoreUnhealthy", "local");
  // A failed store stays closed for changes until the coordinator is restarted.
  bed_.SetFull(kCoordinatorRole, false);
  bed_.Kill(kCoordinatorRole);
  bed_.Restart(kCoordinatorRole);
  AwaitResolved("NibbleStoreUnhealthy", "local");
  AwaitResolved("NibbleDiskNearlyFull", kCoordinatorRole);
}

}  // namespace
}  // namespace nibble
