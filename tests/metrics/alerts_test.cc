// Every alert fires in a real Prometheus, with the rules of deploy/prometheus, when what it warns
// of happens to a real cluster. Those of full disks are in full_disks_test.cc.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

// Lets a process run for a tenth of the time only, as if others took its core; then lets it run.
class Slowed {
 public:
  explicit Slowed(const ProcessIdentity& process)
      : process_(process), thread_([this] {
          while (!over_) {
            SignalProcess(process_, SIGSTOP);
            (void)AwaitAnyEnd({}, std::chrono::milliseconds(90));
            SignalProcess(process_, SIGCONT);
            (void)AwaitAnyEnd({}, std::chrono::milliseconds(10));
          }
        }) {}
  ~Slowed() {
    over_ = true;
    thread_.join();
  }
  Slowed(const Slowed&) = delete;
  Slowed& operator=(const Slowed&) = delete;

 private:
  const ProcessIdentity process_;
  std::atomic<bool> over_{false};
  std::thread thread_;  // last: it uses the above
};

class Alerts : public ScrapedCluster {};

TEST_F(Alerts, FireWhenWhatTheyWarnOfHappens) {
  ASSERT_NE(prometheus_, nullptr);
  AwaitScrapes();
  const std::string healthy =
      bed_.Submit({.name = "healthy", .steps = kEndless, .every = 50, .keep_last = 2});
  // Every update multiplies its weights by about a hundred, until they are infinite.
  const std::string broken =
      SubmitWithOptimizer("broken", "lr: 10, warmup_steps: 2, weight_decay: 10");
  // As above, but the learning rate rises through thousands of steps: weights grow once it is 0.2.
  const std::string spike =
      SubmitWithOptimizer("spike", "lr: 10, warmup_steps: 200000, weight_decay: 10");
  const std::string unsaved =
      bed_.Submit({.name = "unsaved", .steps = kEndless, .every = kEndless - 1});
  const std::string impossible = bed_.Submit({.name = "impossible", .ranks = 64, .batch = 64});
  AwaitFiring("NibbleLossNotFinite", broken);
  AwaitFiring("NibbleGuardActed", broken);
  AwaitFiring("NibbleLossSpike", spike);
  AwaitFiring("NibbleGradientNormJump", spike);

  // A rank that makes no step, and whose watchdog is patient.
  (void)bed_.AskAbout(spike, kKillJob);
  const std::string stuck = bed_.Submit({.name = "stuck", .steps = kEndless, .every = 50});
  bed_.ExpectStep(stuck, 20);
  const ProcessIdentity rank = bed_.LiveRank(stuck, 0).process;
  SignalProcess(rank, SIGSTOP);
  AwaitFiring("NibbleNoProgress", stuck);
  SignalProcess(rank, SIGCONT);

  AwaitFiring("NibbleJobsWaiting", "never");
  AwaitFiring("NibbleCheckpointOld", unsaved);

  const std::string lost = IdleWorker();
  ASSERT_FALSE(lost.empty());
  bed_.Kill(lost);
  AwaitFiring("NibbleWorkerLost", "local");

  EXPECT_FALSE(Fires("NibbleCoordinatorRestarted", "local")) << "it has not been restarted yet";
  bed_.Kill(kCoordinatorRole);
  AwaitFiring("NibbleCoordinatorDown", "local");
  bed_.Restart(kCoordinatorRole);
  AwaitFiring("NibbleCoordinatorRestarted", "local");

  // None of what happened to the others concerns a job that is well.
  for (const auto& [name, rule] : prometheus_->Rules()) {
    if (rule.at("type") == "alerting") {
      EXPECT_FALSE(Fires(name, healthy)) << name;
    }
  }
}

TEST_F(Alerts, FireOnUnderflowOnClippedValuesAndOnASlowRank) {
  ASSERT_NE(prometheus_, nullptr);
  AwaitScrapes();
  // MXFP4 has no second scale: half of the activations behind a squared ReLU become zero.
  const std::string coarse = bed_.Submit({.name = "coarse",
                                          .steps = kEndless,
                                          .every = kEndless - 1,
                                          .precision_every = 20,
                                          .recipe = "mxfp4"});
  const std::string fine = bed_.Submit(
      {.name = "fine", .steps = kEndless, .every = kEndless - 1, .precision_every = 20});
  // Its weights grow until they are infinite, and all scales saturate.
  const std::string saturated = SubmitWithOptimizer(
      "saturated", "lr: 10, warmup_steps: 2, weight_decay: 10", /*precision_every=*/20);
  AwaitFiring("NibbleUnderflowHigh", coarse);
  AwaitFiring("NibbleClippedHigh", saturated);
  // NVFP4 clips some values of every block; that alone is no alert.
  EXPECT_FALSE(Fires("NibbleUnderflowHigh", fine));
  EXPECT_FALSE(Fires("NibbleClippedHigh", fine));
  for (const std::string& job : {coarse, fine, saturated}) (void)bed_.AskAbout(job, kKillJob);

  const std::string gang = bed_.Submit({.name = "gang",
                                        .ranks = 3,
                                        .steps = kEndless,
                                        .every = kEndless - 1,
                                        .sequence = 64,
                                        .batch = 6});
  bed_.ExpectStep(gang, 20);
  const Slowed slowed(bed_.LiveRank(gang, 1).process);
  AwaitFiring("NibbleRankSlow", gang);
  for (const nlohmann::json& labels : Firing("NibbleRankSlow")) {
    EXPECT_EQ(labels.at("rank"), "1") << labels;
  }
}

}  // namespace
}  // namespace nibble
