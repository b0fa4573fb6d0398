// Faults of every kind at random times, while jobs run, recipes change and checkpoints are
// requested: in the end every job has, bit for bit, the losses of an undisturbed run, and
// everything acknowledged is present.
//
//   chaos_test --faults=100 --seed=7      (chaos_long.sh)
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/process/guard_testing.h"
#include "common/process/process.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/cluster/accepted_job.h"
#include "tests/cluster/chaos_plan.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

int fault_count = 15;
uint64_t chaos_seed = 20;

constexpr int kWorkers = 2;
constexpr const char* kRoles[kWorkers] = {"worker-1", "worker-2"};
constexpr int kRunningJobs = 3;
constexpr int64_t kSwitchStep = 250;
constexpr int64_t kStepsAhead = 40;
constexpr milliseconds kReportTime(100);
constexpr milliseconds kSilentTime = ClusterBed::kShortLease / 4;
constexpr milliseconds kPastLease = ClusterBed::kShortLease + milliseconds(400);
constexpr milliseconds kRankStopTime(700);
constexpr milliseconds kDiskFullTime(700);
constexpr int kWatches = 100;

class Chaos : public testing::Test {
 protected:
  Chaos()
      : bed_({.workers = kWorkers,
              .slots = 2,
              .lease = ClusterBed::kShortLease,
              .proxies = true,
              .wall_clocks = true,
              .disks = EnterOwnMounts(),
              .coordinator_flags = CoordinatorFlags(),
              // With an odd seed, ranks that have lost another one keep their processes.
              .worker_flags = {"--keep-ranks", chaos_seed % 2 == 1 ? "20" : "0"}}) {}

  // Three kinds in turn: one rank without changes, two ranks whose recipe changes at a step, one
  // rank whose recipe changes on request.
  void SubmitNext() {
    AcceptedJob accepted;
    const size_t kind = jobs_.size() % 3;
    accepted.spec = {
        .name = absl::StrCat("kind", kind), .ranks = kind == 1 ? 2 : 1, .steps = 400, .every = 20};
    accepted.changes_now = kind == 2;
    v1::JobScheduling scheduling;
    v1::Label& node = *scheduling.add_preferred_labels();
    node.set_key("node");
    node.set_value(WorkerRole(1 + static_cast<int>(jobs_.size()) % kWorkers));
    accepted.hits_before = hits_;
    accepted.job = bed_.Submit(accepted.spec, scheduling);
    if (kind == 1) {
      ChangeRecipe(absl::StrCat("step:", kSwitchStep), "fprop", accepted);
    }
    jobs_.push_back(std::move(accepted));
  }
  bool IsUnderWay(const AcceptedJob& accepted) {
    const v1::JobState state = bed_.watch().Of(accepted.job).job.state();
    return state != v1::JOB_STATE_SUCCEEDED && state != v1::JOB_STATE_FAILED;
  }
  std::vector<AcceptedJob*> UnderWay() {
    std::vector<AcceptedJob*> under_way;
    for (AcceptedJob& accepted : jobs_) {
      if (IsUnderWay(accepted)) under_way.push_back(&accepted);
    }
    return under_way;
  }
  // Requests of users, independent of the faults.
  void Ask(const PlannedFault& planned) {
    const std::vector<AcceptedJob*> under_way = UnderWay();
    AcceptedJob& accepted = *under_way[planned.job % under_way.size()];
    v1::CheckpointJobResponse response;
    const absl::Status status =
        bed_.Call(kCheckpointJob, OfJob<v1::CheckpointJobRequest>(accepted.job), &response);
    if (status.ok()) ++accepted.checkpoints;
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kFailedPrecondition)
        << status.message();
    for (AcceptedJob* const one : under_way) {
      if (!one->changes_now || one->revisions.size() >= 8) continue;
      ChangeWhileRanksAreSilent(*one);
      break;
    }
  }
  // A change for a step that ranks run while their reports are held up, then one for the earlier
  // step of the last report: the first was in effect although it was superseded.
  void ChangeWhileRanksAreSilent(AcceptedJob& accepted) {
    const int64_t step = bed_.Describe(accepted.job).next_step() + kStepsAhead;
    ChangeRecipe(absl::StrCat("step:", step), "wgrad", accepted);
    LetPass(kReportTime);
    SetWires(TcpProxy::Mode::kStall);
    LetPass(kSilentTime);
    ChangeRecipe("now", "fprop", accepted);
    SetWires(TcpProxy::Mode::kPass);
  }
  void SetWires(TcpProxy::Mode mode) {
    for (int worker = 1; worker <= kWorkers; ++worker) bed_.proxy(WorkerRole(worker)).Set(mode);
  }
  static void CheckRefusal(const absl::Status& status) {
    // The job has ended or passed the step: then the change must have no effect.
    EXPECT_TRUE(status.code() == absl::StatusCode::kFailedPrecondition ||
                status.code() == absl::StatusCode::kInvalidArgument)
        << status.message();
  }
  void ChangeRecipe(const std::string& at, const std::string& field, AcceptedJob& accepted) {
    const std::string value = accepted.revisions.size() / 2 % 2 == 0 ? "bf16" : "nvfp4";
    v1::SetRecipeResponse changed;
    const absl::Status status =
        bed_.Call(kSetRecipe, RecipeChange(accepted.job, field, value, at), &changed);
    if (status.ok()) {
      accepted.revisions[changed.revision()] = changed.first_step();
    } else {
      CheckRefusal(status);
    }
  }
  // No process of the cluster may end meanwhile.
  void LetPass(milliseconds time) {
    const auto record = ReadClusterRecord(bed_.cluster().paths());
    ASSERT_TRUE(record.ok());
    std::vector<ProcessIdentity> processes;
    for (const auto& [role, process] : record->processes) processes.push_back(process.identity);
    EXPECT_FALSE(AwaitAnyEnd(processes, time)) << "a process of the cluster ended unexpectedly";
  }
  // A running rank. Waits for one, and submits a job if all have ended since the fault began.
  ClusterBed::Rank SomeRank(uint32_t number) {
    for (int tries = 0; tries < 1000; ++tries) {
      const auto ranks = bed_.LiveRanks();
      if (!ranks.empty()) return ranks[number % ranks.size()];
      if (UnderWay().empty()) SubmitNext();
      LetPass(milliseconds(20));
    }
    ADD_FAILURE() << "no rank runs";
    return {};
  }
  void Inject(const PlannedFault& planned) {
    const std::string worker = WorkerRole(1 + static_cast<int>(planned.victim % kWorkers));
    LocalCluster& cluster = bed_.cluster();
    switch (planned.fault) {
      case Fault::kKillRank: {
        const ClusterBed::Rank rank = SomeRank(planned.victim);
        ++hits_[rank.worker];
        SignalProcess(rank.process, SIGKILL);
        break;
      }
      case Fault::kStopRank: {
        const ClusterBed::Rank rank = SomeRank(planned.victim);
        ++hits_[rank.worker];
        SignalProcess(rank.process, SIGSTOP);
        LetPass(kRankStopTime);
        SignalProcess(rank.process, SIGCONT);
        break;
      }
      case Fault::kKillWorker:
        ++hits_[worker];
        bed_.Kill(worker);
        bed_.Restart(worker);
        break;
      case Fault::kKillCoordinator:
        bed_.Kill(kCoordinatorRole);
        CopyStore(store_, backup_);
        bed_.Restart(kCoordinatorRole);
        break;
      case Fault::kStopWorker:
        ++hits_[worker];
        EXPECT_TRUE(cluster.Signal(worker, SIGSTOP).ok());
        LetPass(kPastLease);
        EXPECT_TRUE(cluster.Signal(worker, SIGCONT).ok());
        break;
      case Fault::kCutWire:
      case Fault::kStallWire:
        ++hits_[worker];
        bed_.proxy(worker).Set(planned.fault == Fault::kCutWire ? TcpProxy::Mode::kCut
                                                                : TcpProxy::Mode::kStall);
        LetPass(kPastLease);
        bed_.proxy(worker).Set(TcpProxy::Mode::kPass);
        break;
      case Fault::kJumpCoordinatorClock:
        bed_.SetWallClock(kCoordinatorRole, WallClockAfter(planned));
        break;
      case Fault::kJumpWorkerClock:
        bed_.SetWallClock(worker, WallClockAfter(planned));
        break;
      case Fault::kFullDisk:
        if (!EnterOwnMounts()) {
          std::printf("  skipped: this machine does not permit mounting a disk\n");
          break;
        }
        bed_.SetFull(worker, true);
        LetPass(kDiskFullTime);
        bed_.SetFull(worker, false);
        break;
      case Fault::kRemoveCheckpoints: {
        const std::vector<AcceptedJob*> under_way = UnderWay();
        if (under_way.empty()) break;
        const std::string job = under_way[planned.job % under_way.size()]->job;
        // Files that the daemon writes meanwhile may remain.
        std::error_code ignored;
        std::filesystem::remove_all(bed_.Store(worker, job), ignored);
        break;
      }
      case Fault::kWatchStorm:
        OpenWatches();
        break;
      case Fault::kRestoreBackup:
        RestoreBackup();
        break;
      case Fault::kRestoreAndLose:
        ++hits_[worker];
        bed_.Kill(worker);
        RestoreBackup(worker);
        (void)AwaitAnyEnd({}, kPastLease);  // the lost worker's process has ended already
        bed_.Restart(worker);
        AdoptUnknown();
        break;
      case Fault::kDoubleStore:
        DoubleStore();
        break;
    }
    for (const char* const role : kRoles) {
      // A restored coordinator has other flags, and the bed another object for them.
      const absl::Status ready = bed_.cluster().AwaitReady(role);
      ASSERT_TRUE(ready.ok()) << ready;
    }
    CheckFlags();
  }

  // A worker may be flagged for at most as many attempts of a job as it had faults since the job
  // was submitted. Faults of the coordinator, of clocks, disks, checkpoints and other workers do
  // not count.
  void CheckFlags() {
    const v1::ListWorkersResponse listed = bed_.Ask(kListWorkers);
    ASSERT_EQ(listed.workers_size(), kWorkers);
    for (const v1::Worker& worker : listed.workers()) {
      for (const std::string& flag : worker.flags()) {
        const std::vector<std::string> words = absl::StrSplit(flag, absl::MaxSplits(' ', 5));
        int ended = 0;
        ASSERT_TRUE(words.size() > 4 && words[0] == "ended" && absl::SimpleAtoi(words[1], &ended))
            << flag;
        const auto named = std::find_if(
            jobs_.begin(), jobs_.end(),
            [&](const AcceptedJob& accepted) { return words[4] == accepted.job + ";"; });
        ASSERT_NE(named, jobs_.end()) << flag;
        const std::string& name = worker.identity().name();
        EXPECT_LE(ended, hits_[name] - named->hits_before[name])
            << name << " is flagged though it is healthy: " << flag << "\n"
            << bed_.Story(named->job);
        flags_.insert(flag);
      }
    }
  }

  // A cold copy, as an operator makes it.
  static void CopyStore(const std::string& from, const std::string& to) {
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  }
  static std::vector<std::string> CoordinatorFlags() {
    // While ranks are silent, a change must not take as long as a lease.
    return {"--switch-wait-ms", "100"};
  }
  // The coordinator starts on the store as it is now. An operator who restores a copy says so.
  void StartOnCopy(bool announced, const std::string& lost = "") {
    std::vector<std::string> flags = CoordinatorFlags();
    if (announced) flags.push_back("--restored");
    bed_.SetCoordinatorFlags(flags);
    bed_.Restart(kCoordinatorRole);
    bed_.SetCoordinatorFlags(CoordinatorFlags());
    for (const char* const role : kRoles) {
      if (role == lost) continue;
      const absl::Status ready = bed_.cluster().AwaitReady(role);
      ASSERT_TRUE(ready.ok()) << ready;
    }
    for (AcceptedJob& accepted : jobs_) accepted.restored = true;
  }
  // `lost`: a worker that does not run.
  void RestoreBackup(const std::string& lost = "") {
    bed_.Kill(kCoordinatorRole);
    if (std::filesystem::exists(backup_)) CopyStore(backup_, store_);
    StartOnCopy(/*announced=*/true, lost);
    if (lost.empty()) AdoptUnknown();
  }
  // Workers come back to a copy whose original they have seen go further.
  void DoubleStore() {
    bed_.Kill(kCoordinatorRole);
    CopyStore(store_, twin_);
    bed_.Restart(kCoordinatorRole);
    for (const char* const role : kRoles) {
      const absl::Status ready = bed_.cluster().AwaitReady(role);
      ASSERT_TRUE(ready.ok()) << ready;
    }
    LetPass(kReportTime);
    bed_.Kill(kCoordinatorRole);
    CopyStore(twin_, store_);
    StartOnCopy(/*announced=*/false);
  }
  // Jobs that were submitted after the copy was made are known only to the workers that run them;
  // those that no worker has begun are lost.
  void AdoptUnknown() {
    for (const char* const role : kRoles) {
      const absl::Status ready = bed_.cluster().AwaitReady(role);
      ASSERT_TRUE(ready.ok()) << ready;
    }
    for (const AcceptedJob& accepted : jobs_) {
      if (!IsKnown(accepted.job) && AnyWorkerHas(accepted.job)) Adopt(accepted.job);
    }
    std::erase_if(jobs_, [this](const AcceptedJob& accepted) {
      if (IsKnown(accepted.job)) return false;
      EXPECT_FALSE(AnyWorkerHas(accepted.job)) << accepted.job;
      std::printf("  %s is lost: it is not in the copy, and no worker had begun it\n",
                  accepted.job.c_str());
      return true;
    });
  }
  bool IsKnown(const std::string& job) {
    v1::DescribeJobResponse described;
    const auto describe = OfJob<v1::DescribeJobRequest>(job);
    return bed_.Call(kDescribeJob, describe, &described).code() != absl::StatusCode::kNotFound;
  }
  bool AnyWorkerHas(const std::string& job) {
    return std::any_of(std::begin(kRoles), std::end(kRoles), [&](const char* role) {
      return std::filesystem::exists(bed_.cluster().paths().Data(role) + "/jobs/" + job);
    });
  }
  void Adopt(const std::string& job) {
    const auto adopt = OfJob<v1::AdoptJobRequest>(job);
    v1::AdoptJobResponse adopted;
    absl::Status status;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    // Retry until the worker that ran the job has reported it: one with replicas does not suffice.
    do {
      status = bed_.Call(kAdoptJob, adopt, &adopted);
    } while ((status.code() == absl::StatusCode::kNotFound ||
              status.code() == absl::StatusCode::kFailedPrecondition) &&
             std::chrono::steady_clock::now() < deadline && (LetPass(milliseconds(50)), true));
    ASSERT_TRUE(status.ok()) << job << ": " << status.message();
    (void)bed_.AskAbout(job, kResumeJob);
  }
  void OpenWatches() {
    const auto stub = v1::Coordinator::NewStub(bed_.stub().channel());
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> watches;
    v1::WatchJobsRequest request;
    request.set_with_samples(true);
    for (int i = 0; i < kWatches; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      contexts.back()->set_wait_for_ready(true);
      watches.push_back(stub->WatchJobs(contexts.back().get(), request));
    }
    v1::WatchJobsResponse first;
    for (const auto& watch : watches) EXPECT_TRUE(watch->Read(&first));
    for (const auto& context : contexts) context->TryCancel();
  }

  ClusterBed bed_;
  const std::string store_ = bed_.cluster().paths().Data(kCoordinatorRole);
  const std::string backup_ = bed_.root() + "/backup";
  const std::string twin_ = bed_.root() + "/twin";
  std::vector<AcceptedJob> jobs_;
  std::map<std::string, int> hits_;  // by worker: faults that can end its attempts
  std::set<std::string> flags_;      // ever observed
};

TEST_F(Chaos, EveryJobEndsWithTheLossesOfAnUndisturbedRun) {
  std::printf("seed %llu, %d faults (--seed, --faults)\n",
              static_cast<unsigned long long>(chaos_seed), fault_count);
  int number = 0;
  std::map<std::string, int> of_each;
  for (const PlannedFault& planned : PlanFaults(chaos_seed, fault_count)) {
    const std::string text = Describe(planned);
    std::printf("fault %d: %s\n", ++number, text.c_str());
    ++of_each[text.substr(0, text.find(" ("))];
    std::fflush(stdout);
    while (UnderWay().size() < kRunningJobs) SubmitNext();
    Ask(planned);
    LetPass(planned.pause);
    Inject(planned);
    if (HasFatalFailure()) break;
  }
  CheckFlags();
  AcceptedJobCheck check(bed_);
  for (const AcceptedJob& accepted : jobs_) check.Run(accepted);
  for (const auto& [fault, count] : of_each) std::printf("%3d  %s\n", count, fault.c_str());
  std::printf(
      "%zu jobs; ranks had run %d changes before they were superseded; "
      "%zu flags of workers, each for their own faults\n",
      jobs_.size(), check.ran_superseded(), flags_.size());
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  nibble::process_testing::GuardProcesses();
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    const bool known = (absl::ConsumePrefix(&argument, "--faults=") &&
                        absl::SimpleAtoi(argument, &nibble::fault_count)) ||
                       (absl::ConsumePrefix(&argument, "--seed=") &&
                        absl::SimpleAtoi(argument, &nibble::chaos_seed));
    if (known) continue;
    std::fprintf(stderr, "chaos_test: '%s' is neither --faults=N nor --seed=N\n", argv[i]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
