// The coordinator's machine is lost. Another one takes over its address, with the volume of the
// store, for which a standby waits, or with a backup of it: ranks never stop, the cluster is whole
// again within a minute, and nothing acknowledged is lost, or nothing that was before the backup
// was requested.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/clerk.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/other_coordinator.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr double kMostSeconds = 60;

enum class From { kVolume, kBackup, kStandby };

const char* SourceName(From from) {
  switch (from) {
    case From::kVolume:
      return "Volume";
    case From::kBackup:
      return "Backup";
    case From::kStandby:
      break;
  }
  return "Standby";
}

class MovedCoordinator : public testing::TestWithParam<From> {
 protected:
  MovedCoordinator() {
    std::string root = "/tmp/nibble-moved-XXXXXX";
    EXPECT_NE(mkdtemp(root.data()), nullptr);
    root_ = root;
  }
  ~MovedCoordinator() override { fs::remove_all(root_); }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }

 private:
  std::string root_;
};

TEST_P(MovedCoordinator, RanksNeverStopAndTheClusterIsWholeWithinAMinute) {
  const bool from_backup = GetParam() == From::kBackup;
  const std::string backups = Path("backups");
  ClusterBed bed(
      {.workers = 2, .coordinator_flags = {"--backup-directory", backups, "--backup-every", "0"}});
  const TinyJob tiny = {.ranks = 2, .steps = 3000, .every = 100};
  const std::string job = bed.Submit(tiny);
  ASSERT_TRUE(Eventually([&] { return !bed.Checkpoints(job).empty(); })) << bed.Story(job);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);
  // The load: jobs are submitted and ended while the backup is made, and until the machine is lost.
  Clerk clerk(bed);
  Clerk::Acknowledged before;
  ASSERT_TRUE(Eventually([&] {
    before = clerk.Known();
    return before.changes() >= 20;
  }));
  const ShellResult made =
      Shell(absl::StrCat(TestPrograms().coordinator, " backup now ", backups, " 2>&1"));
  ASSERT_EQ(made.code, 0) << made.text;
  // Checkpoints that the backup does not know.
  const int64_t known = bed.Describe(job).checkpoint_step();
  ASSERT_TRUE(Eventually([&] { return bed.Describe(job).checkpoint_step() >= known + 200; }))
      << bed.Story(job);
  const int64_t at_loss = bed.Describe(job).checkpoint_step();

  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  std::optional<OtherCoordinator> other;
  if (GetParam() == From::kStandby) other.emplace(bed, store, OtherCoordinator::Options{.standby = true});
  // What was acknowledged after the backup is not in it, and a client would miss it.
  if (from_backup) clerk.Stop();
  bed.Kill(kCoordinatorRole);
  const auto lost = std::chrono::steady_clock::now();
  if (from_backup) {
    fs::remove_all(store);
    const ShellResult restored = Shell(absl::StrCat(TestPrograms().coordinator, " backup restore ",
                                                    backups, " --store ", Path("store"), " 2>&1"));
    ASSERT_EQ(restored.code, 0) << restored.text;
  } else if (!other.has_value()) {
    fs::rename(store, Path("store"));
  }
  if (!other.has_value()) other.emplace(bed, Path("store"));
  // Whole again: both workers are present, the job runs, and everything up to a checkpoint after
  // the loss is committed.
  ASSERT_TRUE(Eventually([&] {
    int present = 0;
    const v1::ListWorkersResponse workers = bed.Ask(kListWorkers);
    for (const v1::Worker& worker : workers.workers()) present += worker.present() ? 1 : 0;
    const v1::Job now = bed.Describe(job);
    return present == 2 && now.state() == v1::JOB_STATE_RUNNING && now.checkpoint_step() > at_loss;
  })) << bed.Story(job);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - lost).count();
  std::printf("recovered from the %s in %.1f s\n", SourceName(GetParam()), seconds);
  EXPECT_LT(seconds, kMostSeconds);
  for (const auto& rank : ranks) EXPECT_TRUE(IsAlive(rank.process)) << bed.Story(job);
  if (from_backup) {
    clerk.ExpectKept(before);
  } else {
    EXPECT_GT(clerk.ExpectNothingLost(job), before.changes());
  }

  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed.Describe(job).attempts(), 1) << bed.Story(job);
  EXPECT_EQ(EventsOf(bed.EventLog(job), "start").size(), 1u);
  bed.ExpectUndisturbedLosses(job, tiny);
}

INSTANTIATE_TEST_SUITE_P(Store, MovedCoordinator,
                         testing::Values(From::kVolume, From::kBackup, From::kStandby),
                         [](const auto& info) { return SourceName(info.param); });

TEST(Standby, EndsWellOnASignalAndDoesNotBeginAStore) {
  ClusterBed bed({.workers = 1});
  const std::string store = bed.cluster().paths().Data(kCoordinatorRole);
  OtherCoordinator standby(bed, store, {.standby = true});
  EXPECT_EQ(standby.Stop(), 0);
  EXPECT_EQ(bed.Ask(kListWorkers).workers_size(), 1);  // the coordinator has not noticed
  const ShellResult refused = Shell(absl::StrCat(TestPrograms().coordinator, " --standby --store ",
                                                 bed.root(), "/none --cluster local 2>&1"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.text, HasSubstr("there is no store"));
  EXPECT_FALSE(fs::exists(bed.root() + "/none"));
}

TEST(WorkerSettings, AFileConfiguresTheDaemonAndItsMistakesStopIt) {
  std::string file = "/tmp/nibble-settings-XXXXXX";
  const int fd = mkstemp(file.data());
  ASSERT_GE(fd, 0);
  (void)close(fd);
  const std::string command =
      absl::StrCat(TestPrograms().worker, " --config ", file, " --print-config 2>&1");
  std::ofstream(file) << "coordinator: 10.0.0.5:7700\ndata: /var/lib/nibble-worker\nname: node-7\n"
                         "slots: 4\nlabel: [rack=a12, zone=b]\n";
  const ShellResult printed = Shell(command + " --slots 2");
  EXPECT_EQ(printed.code, 0) << printed.text;
  EXPECT_THAT(printed.text, HasSubstr("\nslots: 2\n"));
  EXPECT_THAT(printed.text, HasSubstr("\nname: node-7\n"));
  EXPECT_THAT(printed.text, HasSubstr("rack=a12"));
  std::ofstream(file) << "slots: 0\nlabels: [a=b]\n";
  const ShellResult refused = Shell(command);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("line 1: slots: '0'; allowed: whole numbers, 1 to 1024"));
  EXPECT_THAT(refused.text, HasSubstr("line 2: labels: unknown setting, did you mean label?"));
  fs::remove(file);
}

}  // namespace
}  // namespace nibble
