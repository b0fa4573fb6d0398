// Alerts that fire in a real Prometheus, with the rules of deploy/prometheus, when what they warn
// of happens to a real cluster. The others fire in promtool's unit tests only
// (deploy/prometheus/tests): a disk that is nearly full, a store that fails, copies that are
// missing for long, a slow rank, underflow, clipped values and jumps of the gradient norm.
#include <signal.h>

#include <string>

#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

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

}  // namespace
}  // namespace nibble
