// Random histories of requests, reports and failures: the journal always reproduces the state, and
// so do the entities in the store, byte for byte. Also mutated updates, and the persistent maps.
#include "server/state/state.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/files_testing.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "server/state/entities.h"
#include "server/state/persistent.h"
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
        &Chaos::Forget,   &Chaos::Repeat};
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

// Whatever bytes a journal or the network contains, validation returns a status and changes
// nothing.

// A cluster with running jobs, and updates of every kind that made it or could follow.
class Corpus {
 public:
  Corpus() {
    cluster_.AddWorkers(4, 2);
    const std::string first = cluster_.Submit();
    const std::string second = cluster_.Submit(2, "other");
    EXPECT_EQ(cluster_.Start(first), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(first, 10), absl::OkStatus());
    EXPECT_EQ(cluster_.Checkpoint(first, 20), absl::OkStatus());
    EXPECT_EQ(cluster_.Shard(first, 30, 0), absl::OkStatus());
    EXPECT_EQ(cluster_.Start(second), absl::OkStatus());
    for (const std::string& bytes : cluster_.journal()) {
      v1::Update update;
      EXPECT_TRUE(update.ParseFromString(bytes));
      Keep(update);
    }
    v1::CheckpointRef ref;
    ref.set_job(first);
    ref.set_step(10);
    ref.set_attempt(1);
    // One fact of every kind, with fields that refer to existing entities where possible.
    const google::protobuf::Descriptor* const fact = v1::Fact::descriptor();
    for (int i = 0; i < fact->field_count(); ++i) {
      v1::Update update;
      google::protobuf::Message* const message =
          update.add_facts()->GetReflection()->MutableMessage(update.mutable_facts(0),
                                                              fact->field(i));
      const auto* const reflection = message->GetReflection();
      for (int f = 0; f < message->GetDescriptor()->field_count(); ++f) {
        const auto* const field = message->GetDescriptor()->field(f);
        const bool text = field->cpp_type() == field->CPPTYPE_STRING;
        if (text && field->name() == "job") reflection->SetString(message, field, first);
        if (text && field->name() == "worker") reflection->SetString(message, field, "w1");
        if (text && field->name() == "reason") reflection->SetString(message, field, "why");
        if (field->name() == "attempt" && field->cpp_type() == field->CPPTYPE_INT64) {
          reflection->SetInt64(message, field, 1);
        }
        if (field->name() == "ref") reflection->MutableMessage(message, field)->CopyFrom(ref);
      }
      Keep(update);
    }
  }

  const State& state() const { return cluster_.state(); }
  const std::vector<std::string>& updates() const { return updates_; }

 private:
  void Keep(v1::Update& update) {
    update.set_sequence(cluster_.state().sequence() + 1);
    update.set_time_unix_ms(cluster_.now_ms);
    update.set_author("ann");
    updates_.push_back(update.SerializeAsString());
  }

  TestCluster cluster_;
  std::vector<std::string> updates_;
};

std::string Mutate(const std::vector<std::string>& corpus, std::mt19937_64& random) {
  const auto below = [&random](size_t bound) { return random() % bound; };
  std::string bytes = corpus[below(corpus.size())];
  const size_t edits = below(6);
  for (size_t i = 0; i < edits && !bytes.empty(); ++i) {
    switch (below(5)) {
      case 0:
        bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        bytes[below(bytes.size())] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(below(bytes.size()));
        break;
      case 3: {
        // Insert a part of another update.
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size());
        bytes.insert(below(bytes.size() + 1), other.substr(from, below(64)));
        break;
      }
      default:
        bytes.append(corpus[below(corpus.size())]);
    }
    if (bytes.size() > 1 << 16) bytes.resize(1 << 16);
  }
  return bytes;
}

TEST(UpdateFuzz, ValidationOfMutatedUpdatesReturnsAndChangesNothing) {
  const google::protobuf::LogSilencer quiet;
  const Corpus corpus;
  const std::vector<EntityChange> before = Snapshot(corpus.state());
  std::mt19937_64 random(20'260'101);
  std::map<absl::StatusCode, int> answers;
  int parsed = 0;
  for (int i = 0; i < 120'000; ++i) {
    const std::string bytes = Mutate(corpus.updates(), random);
    v1::Update update;
    if (!update.ParseFromString(bytes)) continue;
    ++parsed;
    // Otherwise the first rule would refuse nearly all of them.
    if (random() % 4 != 0) {
      update.set_sequence(corpus.state().sequence() + 1);
      update.set_time_unix_ms(corpus.state().time_unix_ms());
    }
    ++answers[corpus.state().Validate(update).code()];
  }
  EXPECT_EQ(Snapshot(corpus.state()), before);
  EXPECT_GT(parsed, 20'000);
  for (const absl::StatusCode code :
       {absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAborted}) {
    EXPECT_GT(answers[code], 0) << absl::StatusCodeToString(code);
  }
}

TEST(UpdateFuzz, AcceptedMutationsLeaveAStateThatLoads) {
  const google::protobuf::LogSilencer quiet;
  const Corpus corpus;
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    v1::Update update;
    if (!update.ParseFromString(Mutate(corpus.updates(), random))) continue;
    update.set_sequence(corpus.state().sequence() + 1);
    if (!corpus.state().Validate(update).ok() || ++accepted % 20 != 0) continue;
    State next(corpus.state());
    ASSERT_EQ(next.Apply(update).status(), absl::OkStatus());
    StateLoader loader;
    for (const EntityChange& entity : Snapshot(next)) {
      ASSERT_EQ(loader.Add(entity.kind, entity.key, *entity.value), absl::OkStatus())
          << update.DebugString();
    }
    ASSERT_EQ(loader.Finish().status(), absl::OkStatus()) << update.DebugString();
  }
  EXPECT_GT(accepted, 100);
}

using Map = PersistentMap<int, std::string>;
using Reference = std::map<int, std::string>;

Reference Contents(const Map& map) {
  Reference contents;
  for (const auto& [key, value] : map) contents.emplace(key, value);
  return contents;
}

TEST(PersistentTest, AMapEqualsAStdMapAndItsCopiesAreSnapshots) {
  std::mt19937 random(7);
  Map map;
  Reference reference;
  std::vector<std::pair<Map, Reference>> copies;
  for (int i = 0; i < 20'000; ++i) {
    const int key = static_cast<int>(random() % 600);
    if (random() % 5 < 2) {
      EXPECT_EQ(map.Erase(key), reference.erase(key) == 1);
    } else {
      map.Put(key, std::to_string(i));
      reference[key] = std::to_string(i);
    }
    ASSERT_EQ(map.size(), reference.size());
    if (i % 500 == 0) copies.emplace_back(map, reference);
  }
  copies.emplace_back(map, reference);
  for (const auto& [copy, then] : copies) {
    ASSERT_EQ(Contents(copy), then);
    for (int key = -1; key <= 600; ++key) {
      const auto exact = then.find(key);
      const auto lower = then.lower_bound(key);
      const auto upper = then.upper_bound(key);
      EXPECT_EQ(copy.contains(key), exact != then.end());
      EXPECT_EQ(copy.find(key) == copy.end(), exact == then.end());
      EXPECT_EQ(copy.lower_bound(key) == copy.end(), lower == then.end());
      if (lower != then.end()) {
        EXPECT_EQ(copy.lower_bound(key)->second, lower->second);
      }
      EXPECT_EQ(copy.upper_bound(key) == copy.end(), upper == then.end());
      if (upper != then.end()) {
        EXPECT_EQ(copy.upper_bound(key)->first, upper->first);
      }
    }
  }
}

TEST(PersistentTest, ACopySharesEveryEntryThatHasNotChangedSince) {
  PersistentMap<int, std::unique_ptr<int>> map;
  for (int i = 0; i < 1000; ++i) map.Put(i, std::make_unique<int>(i));
  const auto copy = map;
  map.Put(500, std::make_unique<int>(-1));
  map.Erase(10);
  int shared = 0;
  for (const auto& [key, value] : copy) {
    const auto* const now = map.Find(key);
    if (now != nullptr) shared += now->second.get() == value.get() ? 1 : 0;
  }
  EXPECT_EQ(shared, 998);
}

TEST(PersistentTest, AnEntryIsFreedWithTheLastCopyThatHasIt) {
  const auto counted = std::make_shared<int>(1);
  PersistentMap<int, std::shared_ptr<int>> map;
  for (int i = 0; i < 100; ++i) map.Put(i, counted);
  auto copy = std::make_unique<PersistentMap<int, std::shared_ptr<int>>>(map);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(map.Erase(i));
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(counted.use_count(), 101);
  copy.reset();
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(PersistentTest, CopiesAreReadAndDestroyedInOtherThreadsWhileOneIsChanged) {
  Map map;
  for (int i = 0; i < 500; ++i) map.Put(i, "0");
  std::vector<std::thread> readers;
  for (int round = 1; round <= 40; ++round) {
    for (int i = 0; i < 500; i += 7) map.Put(i, std::to_string(round));
    readers.emplace_back([copy = map, round] {
      for (int i = 0; i < 500; i += 7) EXPECT_EQ(copy.Find(i)->second, std::to_string(round));
      EXPECT_EQ(copy.size(), 500u);
    });
  }
  for (std::thread& reader : readers) reader.join();
}

TEST(PersistentTest, InsertionInOrderMakesABalancedTree) {
  PersistentSet<int64_t, std::greater<>> set;
  constexpr int64_t kMany = 200'000;  // deeper than any path array if the tree were a list
  for (int64_t i = 0; i < kMany; ++i) set.Insert(i);
  int64_t expected = kMany;
  for (const int64_t key : set) EXPECT_EQ(key, --expected);
  EXPECT_EQ(*set.upper_bound(100), 99);
}

}  // namespace
}  // namespace nibble
