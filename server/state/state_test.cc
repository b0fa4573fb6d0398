// Random histories of requests, reports and failures: the journal always reproduces the state, and
// so do the entities in the store, byte for byte.
#include "server/state/state.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "server/state/entities.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

// Makes random requests and reports; refused ones count as steps, too.
class Chaos {
 public:
  Chaos(TestCluster& cluster, uint64_t seed) : cluster_(cluster), random_(seed) {}

  void Step() {
    cluster_.now_ms += Below(20'000);
    cluster_.live = {.attempt = Below(4), .next_step = Below(1000)};
    static const auto* const kSteps = new std::vector<void (Chaos::*)()>{
        &Chaos::Submit,   &Chaos::Launch,  &Chaos::Launch, &Chaos::Phase,  &Chaos::Phase,
        &Chaos::Phase,    &Chaos::Phase,   &Chaos::Shards, &Chaos::Shards, &Chaos::Pause,
        &Chaos::Resume,   &Chaos::Cancel,  &Chaos::Kill,   &Chaos::Recipe, &Chaos::Recipe,
        &Chaos::Rollback, &Chaos::Preempt, &Chaos::Lose,   &Chaos::Join,   &Chaos::Confirm,
        &Chaos::Fork,     &Chaos::Pin,     &Chaos::Delete, &Chaos::Drain,  &Chaos::Deadline,
        &Chaos::Forget,   &Chaos::Repeat,  &Chaos::Trim,   &Chaos::Restore};
    (this->*(*kSteps)[static_cast<size_t>(Below(static_cast<int64_t>(kSteps->size())))])();
  }

 private:
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  std::string AnyJob() {
    const auto& jobs = cluster_.state().tables().jobs;
    if (jobs.empty()) return "none-1";
    return std::next(jobs.begin(), Below(static_cast<int64_t>(jobs.size())))->first;
  }
  std::string AnyWorker() { return absl::StrCat("w", 1 + Below(5)); }
  v1::CheckpointRef AnyCheckpoint() {
    const auto& all = cluster_.state().tables().checkpoints;
    if (all.empty()) return {};
    return std::next(all.begin(), Below(static_cast<int64_t>(all.size())))->second->ref();
  }
  template <class Response, class Request>
  void Ask(Request request) {
    request.set_request_id(cluster_.Id());
    (void)cluster_.Do<Response>(request);
  }
  template <class Response, class Request>
  void AskJob() {
    Request request;
    request.set_job(AnyJob());
    request.set_reason("because");
    Ask<Response>(request);
  }

  void Submit() {
    v1::SubmitJobRequest request;
    request.set_spec_yaml(TestCluster::Spec("train", Below(2) == 0 ? 2 : 4));
    request.mutable_scheduling()->set_priority(static_cast<int32_t>(Below(10)));
    request.mutable_restart_policy()->set_max_without_progress(static_cast<int32_t>(Below(3)));
    request.mutable_restart_policy()->set_max_backoff_ms(10'000);
    Ask<v1::SubmitJobResponse>(request);
  }
  void Launch() {
    const std::string job = AnyJob();
    if (cluster_.state().FindJob(job) != nullptr) (void)cluster_.Launch(job);
  }
  void Phase() {
    const std::string job = AnyJob();
    const v1::JobRecord* const record = cluster_.state().FindJob(job);
    if (record == nullptr) return;
    if (Below(3) == 0) {
      const auto phase = static_cast<v1::RankPhase>(Below(v1::RankPhase_ARRAYSIZE));
      (void)cluster_.Report(job, AnyWorker(), phase, Below(1000), Below(3));
      return;
    }
    const v1::RankPhase likely[] = {v1::RANK_PHASE_RUNNING, v1::RANK_PHASE_RUNNING,
                                    v1::RANK_PHASE_PAUSED, v1::RANK_PHASE_STOPPED,
                                    v1::RANK_PHASE_SUCCEEDED};
    (void)cluster_.ReportAll(job, likely[Below(5)], Below(1000));
  }
  void Shards() {
    const std::string job = AnyJob();
    if (cluster_.state().FindJob(job) == nullptr) return;
    if (Below(2) == 0) {
      (void)cluster_.Checkpoint(job, Below(1000));
    } else {
      (void)cluster_.Shard(job, Below(1000), static_cast<int32_t>(Below(5)), Below(3));
    }
  }
  void Pause() { AskJob<v1::PauseJobResponse, v1::PauseJobRequest>(); }
  void Resume() { AskJob<v1::ResumeJobResponse, v1::ResumeJobRequest>(); }
  void Cancel() {
    if (Below(3) == 0) AskJob<v1::CancelJobResponse, v1::CancelJobRequest>();
  }
  void Kill() {
    if (Below(6) == 0) AskJob<v1::KillJobResponse, v1::KillJobRequest>();
  }
  void Recipe() {
    v1::SetRecipeRequest request;
    request.set_job(AnyJob());
    request.set_expected_revision(Below(4) - 1);
    request.set_at(Below(2) == 0 ? "now" : absl::StrCat("step:", Below(1000)));
    request.mutable_change()->add_set()->set_field(Below(2) == 0 ? "fprop" : "wgrad");
    request.mutable_change()->mutable_set(0)->set_value(Below(2) == 0 ? "bf16" : "nvfp4");
    Ask<v1::SetRecipeResponse>(request);
  }
  void Rollback() {
    v1::RollbackRecipeRequest request;
    request.set_job(AnyJob());
    request.set_expected_revision(-1);
    request.set_revision(1);
    Ask<v1::RollbackRecipeResponse>(request);
  }
  void Preempt() {
    (void)cluster_.Run(
        DecidePreempt(cluster_.state(), AnyJob(), "room", Below(50'000), cluster_.caller()));
  }
  void Deadline() {
    const std::string stops = AnyJob();
    const v1::JobRecord* const record = cluster_.state().FindJob(stops);
    (void)cluster_.Run(DecideStopDeadline(cluster_.state(), stops,
                                          record == nullptr ? 0 : record->attempt().number(),
                                          cluster_.caller()));
  }
  void Lose() {
    const std::string name = AnyWorker();
    const v1::WorkerRecord* const worker = cluster_.state().FindWorker(name);
    if (worker == nullptr || Below(2) == 0) return;
    (void)cluster_.Run(DecideWorkerLost(cluster_.state(), name, worker->identity().incarnation(),
                                        "silent", cluster_.caller()));
  }
  void Join() {
    const std::string name = AnyWorker();
    const v1::WorkerRecord* const worker = cluster_.state().FindWorker(name);
    const int64_t known = worker == nullptr ? 1 : worker->identity().incarnation();
    (void)cluster_.Register(name, known + Below(2), 2);
  }
  void Confirm() {
    const std::string job = AnyJob();
    const v1::JobRecord* const record = cluster_.state().FindJob(job);
    if (record == nullptr || !record->has_attempt()) return;
    v1::GangReport report;
    report.set_job(job);
    report.set_attempt(record->last_attempt());
    report.set_phase(record->attempt().placements(0).phase());
    int64_t step = 0;
    const v1::TimelineRecord& timeline = *cluster_.state().FindTimeline(job);
    // Ranks may have run superseded revisions.
    std::map<int64_t, const v1::RecipeRevision*> revisions;
    for (const v1::RecipeRevision& r : timeline.revisions()) revisions[r.number()] = &r;
    for (const v1::RecipeRevision& r : timeline.retired()) revisions[r.number()] = &r;
    for (const auto& [number, revision] : revisions) {
      const v1::RecipeRevision& r = *revision;
      step = std::max(step, r.first_step()) + (Below(3) == 0 ? Below(5) : 0);
      if (Below(3) == 0) continue;
      report.add_revisions()->set_revision(r.number());
      report.mutable_revisions()->rbegin()->set_first_step(step);
    }
    (void)cluster_.Run(DecideGangReport(cluster_.state(), record->attempt().placements(0).worker(),
                                        record->attempt().placements(0).incarnation(), report,
                                        cluster_.caller()));
  }
  void Fork() {
    v1::ForkJobRequest request;
    *request.mutable_checkpoint() = AnyCheckpoint();
    request.set_with_pending(Below(2) == 0);
    // Otherwise it may be refused for repeating its parent.
    if (Below(4) != 0) request.add_settings(absl::StrCat("training.repeat=", 1 + Below(3)));
    Ask<v1::ForkJobResponse>(request);
  }
  void Pin() {
    if (Below(2) == 0) {
      v1::PinCheckpointRequest request;
      *request.mutable_ref() = AnyCheckpoint();
      Ask<v1::PinCheckpointResponse>(request);
    } else {
      v1::UnpinCheckpointRequest request;
      *request.mutable_ref() = AnyCheckpoint();
      Ask<v1::UnpinCheckpointResponse>(request);
    }
  }
  void Delete() {
    v1::DeleteCheckpointRequest request;
    *request.mutable_ref() = AnyCheckpoint();
    Ask<v1::DeleteCheckpointResponse>(request);
  }
  void Drain() {
    if (Below(3) == 0) {
      v1::DrainWorkerRequest request;
      request.set_worker(AnyWorker());
      Ask<v1::DrainWorkerResponse>(request);
    } else {
      v1::UncordonWorkerRequest request;
      request.set_worker(AnyWorker());
      request.set_clear_flags(true);
      Ask<v1::UncordonWorkerResponse>(request);
    }
  }
  void Forget() {
    const std::string job = AnyJob();
    (void)cluster_.Apply(
        cluster_.Facts([&](v1::Fact& fact) { fact.mutable_job_forgotten()->set_job(job); }));
  }
  void Trim() {
    (void)cluster_.Apply(cluster_.Facts([&](v1::Fact& fact) {
      *fact.mutable_checkpoint_deleted()->mutable_ref() = AnyCheckpoint();
      fact.mutable_checkpoint_deleted()->set_kind(v1::DELETION_KIND_RETENTION);
    }));
  }
  // Of a deleted checkpoint, whose shards are on one worker then.
  void Restore() {
    const auto& all = cluster_.state().tables().deletions;
    if (all.empty()) return;
    const v1::CheckpointDeletion deletion =
        *std::next(all.begin(), Below(static_cast<int64_t>(all.size())))->second;
    const std::string job = deletion.ref().job();
    std::vector<LooseShard> shards;
    const std::string worker = AnyWorker();
    for (int32_t rank = 0; rank < deletion.world(); ++rank) {
      shards.push_back({.worker = worker, .shard = {}});
      v1::ShardReport& shard = shards.back().shard;
      *shard.mutable_ref() = deletion.ref();
      shard.set_rank(rank);
      shard.set_world(deletion.world());
    }
    v1::RestoreCheckpointRequest request;
    request.set_request_id(cluster_.Id());
    *request.mutable_ref() = deletion.ref();
    auto ordered = Decide(cluster_.state(), request, cluster_.caller(), shards);
    if (ordered.ok()) (void)cluster_.Apply(*ordered->update);
    if (Below(2) == 0) return;
    (void)cluster_.Run(DecideRestored(cluster_.state(), job, shards, cluster_.caller()));
  }
  void Repeat() {
    v1::SetJobPriorityRequest request;
    request.set_request_id(absl::StrCat("repeated-", Below(3)));
    request.set_job(AnyJob());
    request.set_priority(static_cast<int32_t>(Below(10)));
    (void)cluster_.Do<v1::SetJobPriorityResponse>(request);
  }

  TestCluster& cluster_;
  std::mt19937_64 random_;
};

// No slot is used twice, and no job waits forever.
void CheckSound(const State& state) {
  std::set<std::pair<std::string, int32_t>> slots;
  for (const auto& [id, job] : state.tables().jobs) {
    const NeedsAttempt needs = AttemptIn(job->state());
    EXPECT_FALSE(needs == NeedsAttempt::kAlways && !job->has_attempt()) << id;
    EXPECT_FALSE(needs == NeedsAttempt::kNever && job->has_attempt()) << id;
    EXPECT_EQ(state.index().unfinished().contains(job->number()), !IsFinished(job->state()));
    for (const v1::Placement& placement : job->attempt().placements()) {
      EXPECT_TRUE(state.FindWorker(placement.worker())->present());
      for (const int32_t slot : placement.slots()) {
        EXPECT_TRUE(slots.emplace(placement.worker(), slot).second) << id;
      }
    }
  }
}

TEST(History, ReplayEqualsTheLiveStateAfterEveryPrefix) {
  // The histories must cover every state; which ones a seed's does depends on the compiler, which
  // may draw the arguments of a call in any order.
  constexpr size_t kStates = 9;
  std::set<v1::JobState> seen;
  for (uint64_t seed = 1; seed <= 6 || (seen.size() < kStates && seed <= 24); ++seed) {
    TestCluster cluster;
    cluster.AddWorkers(4, 2);
    Chaos chaos(cluster, seed);
    State replayed;
    size_t done = 0;
    for (int step = 0; step < 500; ++step) {
      chaos.Step();
      for (; done < cluster.journal().size(); ++done) {
        v1::Update update;
        ASSERT_TRUE(update.ParseFromString(cluster.journal()[done]));
        ASSERT_EQ(replayed.Apply(update).status(), absl::OkStatus());
      }
      if (step % file_testing::kOneIn == 0) {
        ASSERT_EQ(Snapshot(replayed), Snapshot(cluster.state())) << "seed " << seed;
      }
      CheckSound(cluster.state());
      for (const auto& [id, job] : cluster.state().tables().jobs) seen.insert(job->state());
    }
    EXPECT_GT(cluster.journal().size(), 100u);
  }
  EXPECT_EQ(seen.size(), kStates);
}

TEST(History, ASnapshotAndTheLaterUpdatesEqualTheLiveState) {
  for (uint64_t seed = 11; seed <= 13; ++seed) {
    TestCluster cluster;
    cluster.AddWorkers(4, 2);
    Chaos chaos(cluster, seed);
    for (int round = 0; round < 15; ++round) {
      for (int step = 0; step < 20; ++step) chaos.Step();
      absl::StatusOr<State> loaded = Load(cluster.store());
      ASSERT_EQ(loaded.status(), absl::OkStatus());
      ASSERT_EQ(Snapshot(*loaded), Snapshot(cluster.state()));
      const size_t from = cluster.journal().size();
      for (int step = 0; step < 20; ++step) chaos.Step();
      for (size_t i = from; i < cluster.journal().size(); ++i) {
        v1::Update update;
        ASSERT_TRUE(update.ParseFromString(cluster.journal()[i]));
        ASSERT_EQ(loaded->Apply(update).status(), absl::OkStatus());
      }
      ASSERT_EQ(Snapshot(*loaded), Snapshot(cluster.state()));
    }
  }
}

TEST(History, AStoreWithAMissingEntityIsRefusedNamingIt) {
  TestCluster cluster;
  cluster.AddWorkers(2, 2);
  const std::string job = cluster.Submit();
  ASSERT_EQ(cluster.Start(job), absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(job, 10), absl::OkStatus());
  int refused = 0;
  for (const auto& [key, value] : cluster.store()) {
    if (key.first == v1::ENTITY_KIND_EVENT || key.first == v1::ENTITY_KIND_REQUEST) continue;
    auto store = cluster.store();
    store.erase(key);
    const absl::Status status = Load(store).status();
    if (key.first != v1::ENTITY_KIND_CHECKPOINT) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << key.first << " " << key.second;
      ++refused;
    }
    store = cluster.store();
    store[key] = "\x07 not an entity";
    EXPECT_EQ(Load(store).status().code(), absl::StatusCode::kDataLoss) << key.second;
  }
  EXPECT_GT(refused, 8);
}

TEST(History, AnEntityThatANewerCoordinatorWroteIsRefusedNamingItsField) {
  TestCluster cluster;
  cluster.AddWorkers(2, 2);
  auto store = cluster.store();
  const std::pair<int, std::string> key = {v1::ENTITY_KIND_WORKER, "w1"};
  ASSERT_TRUE(store.contains(key));
  v1::WorkerRecord worker;
  ASSERT_TRUE(worker.ParseFromString(store[key]));
  v1::Hardware& hardware = *worker.mutable_identity()->mutable_hardware();
  hardware.GetReflection()->MutableUnknownFields(&hardware)->AddVarint(1007, 1);
  store[key] = worker.SerializeAsString();
  EXPECT_EQ(Load(store).status(),
            absl::FailedPreconditionError(
                "entity ENTITY_KIND_WORKER 'w1': identity.hardware: has field 1007, which this "
                "program does not know: a newer coordinator wrote it; start that one, or restore a "
                "backup from before with this one"));
}

}  // namespace
}  // namespace nibble
