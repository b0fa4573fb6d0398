// Faults of every kind at random moments, while jobs run, recipes change and checkpoints are asked
// for: in the end every job has the losses of one that nobody has touched, bit for bit, and nothing
// that was acknowledged is missing.
//
//   chaos_test --faults=100 --seed=7      (chaos_long.sh)
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cluster/local_processes.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/cluster/chaos_plan.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

int fault_count = 13;
bool has_disks = false;  // of its own, that can be filled
uint64_t chaos_seed = 20;

constexpr int kWorkers = 2;
constexpr const char* kRoles[kWorkers] = {"worker-1", "worker-2"};
constexpr int kAtOnce = 3;  // jobs under way
constexpr int64_t kSwitchStep = 250;
constexpr int64_t kSoon = 40;  // steps
constexpr milliseconds kHeard(100);
constexpr milliseconds kUnheard = ClusterBed::kLease / 4;
constexpr milliseconds kPastLease = ClusterBed::kLease + milliseconds(400);
constexpr milliseconds kRankStands(700);
constexpr milliseconds kDiskIsFull(700);
constexpr int kWatches = 100;

// What was acknowledged of one job.
struct Accepted {
  std::string job;
  TinyJob spec;
  std::map<std::string, int> hits_before;  // by worker: faults there before it was submitted
  bool changes_now = false;                // its recipe changed at steps that nobody chose
  bool restored = false;                 // the coordinator forgot some of what it had acknowledged
  int64_t checkpoints = 0;               // asked for
  std::map<int64_t, int64_t> revisions;  // first step, asked for, by number
};

class Chaos : public testing::Test {
 protected:
  Chaos()
      : bed_({.workers = kWorkers,
              .slots = 2,
              .proxies = true,
              .wall_clocks = true,
              .disks = has_disks,
              // While nothing is heard of ranks, a change is not to take as long as a lease.
              .coordinator_flags = {"--switch-wait-ms", "100"}}) {}

  static v1::SetRecipeRequest Change(const std::string& job, const std::string& at,
                                     const std::string& field, const std::string& value) {
    v1::SetRecipeRequest request;
    request.set_job(job);
    request.set_expected_revision(-1);
    request.set_at(at);
    request.set_reason("chaos");
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field(field);
    setting.set_value(value);
    return request;
  }

  // Three kinds in turn: one rank as it is, two ranks whose recipe changes at a step, one rank
  // whose recipe changes whenever it is asked to.
  void SubmitNext() {
    Accepted accepted;
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
  bool IsUnderWay(const Accepted& accepted) {
    const v1::JobState state = bed_.watch().Of(accepted.job).job.state();
    return state != v1::JOB_STATE_SUCCEEDED && state != v1::JOB_STATE_FAILED;
  }
  std::vector<Accepted*> UnderWay() {
    std::vector<Accepted*> under_way;
    for (Accepted& accepted : jobs_) {
      if (IsUnderWay(accepted)) under_way.push_back(&accepted);
    }
    return under_way;
  }
  // Requests of people, which come whatever else happens.
  void Ask(const PlannedFault& planned) {
    const std::vector<Accepted*> under_way = UnderWay();
    Accepted& accepted = *under_way[planned.job % under_way.size()];
    v1::CheckpointJobRequest request;
    request.set_job(accepted.job);
    request.set_reason("chaos");
    v1::CheckpointJobResponse response;
    const absl::Status status = bed_.Call(kCheckpointJob, request, &response);
    if (status.ok()) ++accepted.checkpoints;
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kFailedPrecondition)
        << status.message();
    for (Accepted* const one : under_way) {
      if (!one->changes_now || one->revisions.size() >= 8) continue;
      ChangeBehindTheirBack(*one);
      break;
    }
  }
  // A change for a step that ranks make while nothing is heard of them, and then one for the step
  // that they are thought to be before: the first holds although it has made way.
  void ChangeBehindTheirBack(Accepted& accepted) {
    const int64_t soon = bed_.Describe(accepted.job).next_step() + kSoon;
    ChangeRecipe(absl::StrCat("step:", soon), "wgrad", accepted);
    LetPass(kHeard);
    SetWires(TcpProxy::Mode::kStall);
    LetPass(kUnheard);
    ChangeRecipe("now", "fprop", accepted);
    SetWires(TcpProxy::Mode::kPass);
  }
  void SetWires(TcpProxy::Mode mode) {
    for (int worker = 1; worker <= kWorkers; ++worker) bed_.proxy(WorkerRole(worker)).Set(mode);
  }
  static void CheckRefusal(const absl::Status& status) {
    // It is over, or has passed the step: then nothing may have changed.
    EXPECT_TRUE(status.code() == absl::StatusCode::kFailedPrecondition ||
                status.code() == absl::StatusCode::kInvalidArgument)
        << status.message();
  }
  void ChangeRecipe(const std::string& at, const std::string& field, Accepted& accepted) {
    const std::string value = accepted.revisions.size() / 2 % 2 == 0 ? "bf16" : "nvfp4";
    v1::SetRecipeResponse changed;
    const absl::Status status =
        bed_.Call(kSetRecipe, Change(accepted.job, at, field, value), &changed);
    if (status.ok()) {
      accepted.revisions[changed.revision()] = changed.first_step();
    } else {
      CheckRefusal(status);
    }
  }
  // Nothing of the cluster is to end meanwhile.
  void LetPass(milliseconds time) {
    const auto record = ReadClusterRecord(bed_.cluster().paths());
    ASSERT_TRUE(record.ok());
    std::vector<ProcessIdentity> processes;
    for (const auto& [role, process] : record->processes) processes.push_back(process.identity);
    EXPECT_FALSE(AwaitAnyEnd(processes, time)) << "a process of the cluster has ended by itself";
  }
  // A rank that runs: of jobs under way there is one sooner or later. They may all have ended since
  // the fault was begun.
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
        LetPass(kRankStands);
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
        if (!has_disks) {
          std::printf("  not done: this machine does not let the test mount a disk\n");
          break;
        }
        bed_.SetFull(worker, true);
        LetPass(kDiskIsFull);
        bed_.SetFull(worker, false);
        break;
      case Fault::kRemoveCheckpoints: {
        const std::vector<Accepted*> under_way = UnderWay();
        if (under_way.empty()) break;
        const std::string job = under_way[planned.job % under_way.size()]->job;
        // What the daemon writes meanwhile may stay.
        std::error_code ignored;
        std::filesystem::remove_all(cluster.paths().Data(worker) + "/jobs/" + job + "/checkpoints",
                                    ignored);
        break;
      }
      case Fault::kWatchStorm:
        OpenWatches();
        break;
      case Fault::kRestoreBackup:
        RestoreBackup();
        break;
    }
    for (const char* const role : kRoles) {
      const absl::Status ready = cluster.AwaitReady(role);
      ASSERT_TRUE(ready.ok()) << ready;
    }
    CheckFlags();
  }

  // A worker is flagged for as many attempts of a job as faults of its own can have ended since the
  // job was submitted, and for nothing else: what happens to the coordinator, to clocks, disks,
  // checkpoints or to another worker is not its fault.
  void CheckFlags() {
    v1::ListWorkersResponse listed;
    const absl::Status status = bed_.Call(kListWorkers, v1::ListWorkersRequest(), &listed);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(listed.workers_size(), kWorkers);
    for (const v1::Worker& worker : listed.workers()) {
      for (const std::string& flag : worker.flags()) {
        const std::vector<std::string> words = absl::StrSplit(flag, absl::MaxSplits(' ', 5));
        int ended = 0;
        ASSERT_TRUE(words.size() > 4 && words[0] == "ended" && absl::SimpleAtoi(words[1], &ended))
            << flag;
        const auto named = std::find_if(jobs_.begin(), jobs_.end(), [&](const Accepted& accepted) {
          return words[4] == accepted.job + ";";
        });
        ASSERT_NE(named, jobs_.end()) << flag;
        const std::string& name = worker.identity().name();
        EXPECT_LE(ended, hits_[name] - named->hits_before[name])
            << name << " is flagged though it is healthy: " << flag << "\n"
            << bed_.Story(named->job);
        flags_.insert(flag);
      }
    }
  }

  // As an operator copies it, while nobody has it open.
  static void CopyStore(const std::string& from, const std::string& to) {
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  }
  // Jobs that were submitted since the copy was made are known to their workers alone. Those that
  // no worker has begun are nowhere any more.
  void RestoreBackup() {
    bed_.Kill(kCoordinatorRole);
    if (std::filesystem::exists(backup_)) CopyStore(backup_, store_);
    bed_.Restart(kCoordinatorRole);
    for (const char* const role : kRoles) {
      const absl::Status ready = bed_.cluster().AwaitReady(role);
      ASSERT_TRUE(ready.ok()) << ready;
    }
    for (Accepted& accepted : jobs_) {
      accepted.restored = true;
      if (!IsKnown(accepted.job) && AWorkerHas(accepted.job)) Adopt(accepted.job);
    }
    std::erase_if(jobs_, [this](const Accepted& accepted) {
      if (IsKnown(accepted.job)) return false;
      EXPECT_FALSE(AWorkerHas(accepted.job)) << accepted.job;
      std::printf("  no worker had begun %s, which the copy does not have\n", accepted.job.c_str());
      return true;
    });
  }
  bool IsKnown(const std::string& job) {
    v1::DescribeJobRequest describe;
    describe.set_job(job);
    v1::DescribeJobResponse described;
    return bed_.Call(kDescribeJob, describe, &described).code() != absl::StatusCode::kNotFound;
  }
  bool AWorkerHas(const std::string& job) {
    return std::any_of(std::begin(kRoles), std::end(kRoles), [&](const char* role) {
      return std::filesystem::exists(bed_.cluster().paths().Data(role) + "/jobs/" + job);
    });
  }
  void Adopt(const std::string& job) {
    v1::AdoptJobRequest adopt;
    adopt.set_job(job);
    adopt.set_reason("chaos");
    v1::AdoptJobResponse adopted;
    absl::Status status;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    // Until the worker that has run it has reported it, not only one with copies.
    do {
      status = bed_.Call(kAdoptJob, adopt, &adopted);
    } while ((status.code() == absl::StatusCode::kNotFound ||
              status.code() == absl::StatusCode::kFailedPrecondition) &&
             std::chrono::steady_clock::now() < deadline && (LetPass(milliseconds(50)), true));
    ASSERT_TRUE(status.ok()) << job << ": " << status.message();
    v1::ResumeJobRequest resume;
    resume.set_job(job);
    resume.set_reason("chaos");
    v1::ResumeJobResponse resumed;
    status = bed_.Call(kResumeJob, resume, &resumed);
    EXPECT_TRUE(status.ok()) << job << ": " << status.message();
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

  void Check(const Accepted& accepted) {
    SCOPED_TRACE(accepted.job);
    bed_.ExpectState(accepted.job, v1::JOB_STATE_SUCCEEDED);
    CheckLosses(accepted);
    CheckLast(accepted);
    // A backup does not have what was acknowledged after it was made.
    if (accepted.restored) return;
    CheckRevisions(accepted);
    CheckCheckpoints(accepted);
  }
  // What was asked for, with the changes at the steps at which they came to hold.
  static TinyJob AsItCameToBe(const Accepted& accepted,
                              const std::vector<v1::RecipeRevision>& timeline) {
    std::map<int64_t, std::map<std::string, std::string>> by_step;
    for (const v1::RecipeRevision& revision : timeline) {
      auto& fields = by_step[revision.first_step()];
      fields.clear();
      for (const v1::FieldSetting& setting : revision.recipe().set()) {
        fields[setting.field()] = setting.value();
      }
    }
    const auto words = [](const std::map<std::string, std::string>& fields) {
      return absl::StrCat("{", absl::StrJoin(fields, ", ", absl::PairFormatter(": ")), "}");
    };
    TinyJob job = accepted.spec;
    if (!by_step.at(0).empty()) {
      job.recipe = absl::StrCat("{preset: nvfp4, set: ", words(by_step.at(0)), "}");
    }
    by_step.erase(0);
    if (!by_step.empty()) job.more = "changes:\n";
    for (const auto& [step, fields] : by_step) {
      absl::StrAppend(&job.more, "  - {at: step:", step, ", set: ", words(fields), "}\n");
    }
    return job;
  }
  // The timeline as the ranks' own log tells it: a revision wherever the recipe of a step is
  // another than that of the step before.
  static std::vector<v1::RecipeRevision> AsItWasRun(const std::vector<json>& log) {
    std::map<int64_t, std::string> recipes;  // by revision, as they are at this place of the log
    std::map<int64_t, std::string> run;      // by step
    for (const json& event : log) {
      if (event.at("event") == "revision") recipes[event.at("revision")] = event.at("recipe");
      if (event.at("event") == "step") run[event.at("step")] = recipes.at(event.at("revision"));
    }
    std::vector<v1::RecipeRevision> timeline;
    std::string before;
    for (const auto& [step, recipe] : run) {
      if (recipe == before) continue;
      v1::RecipeRevision& revision = timeline.emplace_back();
      revision.set_first_step(step);
      const json parsed = json::parse(recipe);
      for (const json& one : parsed.at("set")) {
        v1::FieldSetting& setting = *revision.mutable_recipe()->add_set();
        setting.set_field(one.at("field"));
        setting.set_value(one.at("value"));
      }
      before = recipe;
    }
    return timeline;
  }
  static int64_t RevisionAt(const std::vector<v1::RecipeRevision>& timeline, int64_t step) {
    int64_t number = 0;
    for (const v1::RecipeRevision& revision : timeline) {
      if (revision.first_step() <= step) number = revision.number();
    }
    return number;
  }
  void CheckLosses(const Accepted& accepted) {
    const std::vector<json> log = bed_.EventLog(accepted.job);
    const std::vector<v1::RecipeRevision> timeline = bed_.Revisions(accepted.job);
    const auto losses = LossBits(log);
    ASSERT_EQ(losses.size(), static_cast<size_t>(accepted.spec.steps));
    // A backup may not have the changes that ranks ran after it was made; their log has.
    const bool history_may_lack = accepted.restored && accepted.changes_now;
    const TinyJob came_to_be =
        AsItCameToBe(accepted, history_may_lack ? AsItWasRun(log) : timeline);
    EXPECT_EQ(FirstDifference(losses, bed_.UndisturbedLosses(came_to_be)), "")
        << came_to_be.Yaml("corpus.txt") << bed_.Story(accepted.job);
    std::map<int64_t, int64_t> revisions;
    for (const json& step : EventsOf(log, "step")) {
      const int64_t number = step.at("step");
      revisions[number] = step.at("revision");
      if (accepted.changes_now) continue;
      // Of every attempt, not only of the last that made the step: nothing was to change it.
      EXPECT_EQ(std::bit_cast<uint64_t>(step.at("loss").get<double>()), losses.at(number))
          << "step " << number << " had two losses\n"
          << bed_.Story(accepted.job);
    }
    if (history_may_lack) return;
    for (const auto& [step, revision] : revisions) {
      EXPECT_EQ(revision, RevisionAt(timeline, step)) << "step " << step << "\n"
                                                      << bed_.Story(accepted.job);
    }
  }
  void CheckRevisions(const Accepted& accepted) {
    const JobWatch::Seen seen = bed_.watch().Of(accepted.job);
    const auto kept = bed_.Revisions(accepted.job);
    for (const auto& [number, first_step] : accepted.revisions) {
      const std::string text = absl::StrCat("revision ", number, " accepted, to hold from step ");
      EXPECT_TRUE(std::any_of(
          seen.events.begin(), seen.events.end(),
          [&](const auto& event) { return absl::StartsWith(event.second.text(), text); }))
          << text << " is not in the history\n"
          << bed_.Story(accepted.job);
      bool there = false;
      for (const v1::RecipeRevision& revision : kept) there |= revision.number() == number;
      // One that is pending makes way, under a new number, for a later one that is to hold before
      // it.
      there |= accepted.revisions.rbegin()->first > number;
      EXPECT_TRUE(there) << "revision " << number << " from step " << first_step << " is gone\n"
                         << bed_.Story(accepted.job);
    }
  }
  void CheckCheckpoints(const Accepted& accepted) {
    const JobWatch::Seen seen = bed_.watch().Of(accepted.job);
    std::map<int64_t, std::set<int64_t>> attempts_of_step;
    int64_t asked = 0;
    // The first attempt that went back before the newest checkpoint, because nobody had it.
    int64_t went_back = INT64_MAX;
    for (const auto& [number, event] : seen.events) {
      if (event.kind() == v1::JOB_EVENT_KIND_ATTEMPT &&
          absl::StrContains(event.text(), "because the checkpoint")) {
        went_back = std::min(went_back, event.attempt());
      }
      if (event.kind() != v1::JOB_EVENT_KIND_CHECKPOINT) continue;
      if (absl::StartsWith(event.text(), "committed")) {
        attempts_of_step[event.step()].insert(event.attempt());
      }
      asked += absl::StartsWith(event.text(), "asked for");
    }
    for (const auto& [number, event] : seen.events) {
      held_after_all_ += absl::StrContains(event.text(), "ranks had switched before");
    }
    EXPECT_EQ(asked, accepted.checkpoints) << bed_.Story(accepted.job);
    EXPECT_FALSE(attempts_of_step.empty());
    for (const auto& [step, attempts] : attempts_of_step) {
      EXPECT_TRUE(attempts.size() == 1 || *attempts.rbegin() >= went_back)
          << "step " << step << " was committed by several attempts\n"
          << bed_.Story(accepted.job);
    }
  }
  // The last checkpoint is there, whole.
  void CheckLast(const Accepted& accepted) {
    const auto kept = bed_.Checkpoints(accepted.job);
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(kept[0].ref().step(), accepted.spec.steps);
    EXPECT_EQ(kept[0].state(), v1::CHECKPOINT_STATE_COMMITTED);
  }

  ClusterBed bed_;
  const std::string store_ = bed_.cluster().paths().Data(kCoordinatorRole);
  const std::string backup_ = bed_.root() + "/backup";
  std::vector<Accepted> jobs_;
  std::map<std::string, int> hits_;  // by worker: faults that can end attempts there
  std::set<std::string> flags_;      // that were seen
  int held_after_all_ = 0;           // changes that had made way
};

TEST_F(Chaos, EveryJobEndsAsIfNothingHadHappened) {
  std::printf("seed %llu, %d faults (--seed, --faults)\n",
              static_cast<unsigned long long>(chaos_seed), fault_count);
  int number = 0;
  std::map<std::string, int> of_each;
  for (const PlannedFault& planned : PlanFaults(chaos_seed, fault_count)) {
    const std::string text = Describe(planned);
    std::printf("fault %d: %s\n", ++number, text.c_str());
    ++of_each[text.substr(0, text.find(" ("))];
    std::fflush(stdout);
    while (UnderWay().size() < kAtOnce) SubmitNext();
    Ask(planned);
    LetPass(planned.pause);
    Inject(planned);
    if (HasFatalFailure()) break;
  }
  CheckFlags();
  for (const Accepted& accepted : jobs_) Check(accepted);
  for (const auto& [fault, count] : of_each) std::printf("%3d  %s\n", count, fault.c_str());
  std::printf(
      "%zu jobs; %d changes that had made way were made before that was heard; "
      "%zu flags of workers, each for faults of its own\n",
      jobs_.size(), held_after_all_, flags_.size());
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
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
  nibble::has_disks = nibble::EnterOwnMounts();
  return RUN_ALL_TESTS();
}
