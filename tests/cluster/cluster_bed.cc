#include "tests/cluster/cluster_bed.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cluster/local_processes.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kDiskSize[] = "size=4g";
constexpr int kDocuments = 40;  // of the corpus

// Short, because the length of socket paths is bounded.
std::string MakeRoot() {
  std::string root = "/tmp/nibble-bed-XXXXXX";
  EXPECT_NE(mkdtemp(root.data()), nullptr);
  fs::create_directories(root + "/tmp");
  return root;
}

void AddDefault(std::vector<std::string>& flags, const std::string& name,
                const std::string& value) {
  if (std::find(flags.begin(), flags.end(), name) != flags.end()) return;
  flags.insert(flags.end(), {name, value});
}

void AddCoordinatorDefaults(std::chrono::milliseconds lease, std::vector<std::string>& flags) {
  AddDefault(flags, "--lease-ms", absl::StrCat(lease.count()));
  AddDefault(flags, "--tick-ms", "20");
}

}  // namespace

v1::SetRecipeRequest RecipeChange(const std::string& job, const std::string& field,
                                  const std::string& value, const std::string& at) {
  v1::SetRecipeRequest request;
  request.set_job(job);
  request.set_expected_revision(-1);
  v1::FieldSetting& setting = *request.mutable_change()->add_set();
  setting.set_field(field);
  setting.set_value(value);
  request.set_at(at);
  return request;
}

bool EnterOwnMounts() {
  static const bool entered =
      unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

ClusterPrograms TestPrograms() {
  return {.coordinator = BuiltProgram("server/nibble-coordinator"),
          .worker = BuiltProgram("worker/agent/nibble-worker"),
          .trainer = BuiltProgram("worker/trainer/loop/nibble-trainer")};
}

std::string NibbleProgram() { return BuiltProgram("client/nibble"); }

ClusterBed::ClusterBed(const Options& options) : lease_(options.lease), root_(MakeRoot()) {
  WriteCorpus(corpus(), kDocuments);
  LocalCluster::Options& cluster = cluster_options_;
  cluster = {.directory = root_ + "/cluster",
             .programs = options.programs,
             .coordinator_flags = options.coordinator_flags,
             .worker_flags = options.worker_flags,
             // A killed daemon leaves temporary files only here.
             .environment = {{"TMPDIR", root_ + "/tmp"}},
             .patience = kPatience};
  if (options.late_devices) {
    cluster.programs.trainer = BuiltProgram("worker/trainer/loop/nibble-trainer-late");
  }
  if (options.wall_clocks) {
    fs::create_directories(ClocksDirectory());
    SetWallClock(kCoordinatorRole, std::chrono::milliseconds(0));
    for (int number = 1; number <= options.workers; ++number) {
      SetWallClock(WorkerRole(number), std::chrono::milliseconds(0));
    }
    cluster.environment["NIBBLE_TEST_WALL_CLOCKS"] = ClocksDirectory();
    cluster.environment["LD_PRELOAD"] =
        fs::absolute(BuiltProgram("tests/cluster/libwall_clock_shim.so"));
  }
  AddCoordinatorDefaults(lease_, cluster.coordinator_flags);
  AddDefault(cluster.worker_flags, "--beat-ms", "100");
  for (int number = 1; options.disks && number <= options.workers; ++number) {
    MountDisk(absl::StrCat(root_, "/cluster/", WorkerRole(number)));
  }
  if (options.coordinator_disk) MountDisk(absl::StrCat(root_, "/cluster/", kCoordinatorRole));
  const int port = ChooseFreePort().value();
  if (options.proxies) {
    for (int number = 1; number <= options.workers; ++number) {
      proxies_[WorkerRole(number)] = std::make_unique<TcpProxy>(port);
    }
    cluster.reach = [this](const std::string& role, const std::string&) {
      return proxies_.at(role)->address();
    };
  }
  cluster_ = std::make_unique<LocalCluster>(cluster);
  const auto up = cluster_->Up({.workers = options.workers, .slots = options.slots, .port = port});
  if (!up.ok()) {
    TakeDown();
    // GoogleTest reports it as a failure of the test, which then does not run.
    throw std::runtime_error(absl::StrCat("the cluster is not up: ", up.status().ToString()));
  }
  address_ = absl::StrCat("127.0.0.1:", port);
  stub_ = std::make_unique<CoordinatorStub>(address_);
  watch_ = std::make_unique<JobWatch>(address_);
}

ClusterBed::~ClusterBed() {
  watch_.reset();
  TakeDown();
}

void ClusterBed::SetWallClock(const std::string& role, std::chrono::milliseconds ahead) {
  // In place: the processes have the file mapped (wall_clock_shim.cc).
  std::fstream file(ClocksDirectory() + "/" + role,
                    std::ios::binary | std::ios::in | std::ios::out);
  if (!file.is_open()) {
    file.open(ClocksDirectory() + "/" + role, std::ios::binary | std::ios::out);
  }
  const int64_t nanos = std::chrono::nanoseconds(ahead).count();
  file.write(reinterpret_cast<const char*>(&nanos), sizeof nanos);
  EXPECT_TRUE(file.flush().good()) << "the wall clock of " << role << " is not set";
}

void ClusterBed::MountDisk(const std::string& path) {
  fs::create_directories(path);
  EXPECT_EQ(mount("tmpfs", path.c_str(), "tmpfs", 0, kDiskSize), 0)
      << path << ": " << std::strerror(errno);
  disks_.push_back(path);
}

void ClusterBed::SetFull(const std::string& role, bool full) {
  const std::string path = cluster_->paths().Data(role);
  std::string size = kDiskSize;
  // Usage may have grown since it was read.
  for (int tries = 0; tries < 1000; ++tries) {
    if (full) {
      struct statfs used;
      ASSERT_EQ(statfs(path.c_str(), &used), 0) << std::strerror(errno);
      size = absl::StrCat("size=", (used.f_blocks - used.f_bfree) * used.f_bsize);
    }
    if (mount("tmpfs", path.c_str(), "tmpfs", MS_REMOUNT, size.c_str()) == 0) return;
  }
  ADD_FAILURE() << path << ": " << size << ": " << std::strerror(errno);
}

void ClusterBed::TakeDown() {
  const auto record = ReadClusterRecord(cluster_->paths());
  if (record.ok()) {
    for (const auto& [role, process] : record->processes) {
      (void)cluster_->Signal(role, SIGKILL);
      (void)cluster_->AwaitEnd(role, kPatience);
    }
  }
  const absl::Status down = cluster_->Down(std::chrono::milliseconds(0));
  EXPECT_TRUE(down.ok()) << down;
  for (const std::string& disk : disks_) EXPECT_EQ(umount2(disk.c_str(), MNT_DETACH), 0) << disk;
  if (getenv("NIBBLE_TEST_KEEP") == nullptr) fs::remove_all(root_);
}

std::string ClusterBed::Submit(const TinyJob& job, const v1::JobScheduling& scheduling) {
  return SubmitSpec(job.Yaml(corpus()), scheduling);
}

std::string ClusterBed::SubmitSpec(const std::string& yaml, const v1::JobScheduling& scheduling) {
  v1::SubmitJobRequest request;
  request.set_spec_yaml(yaml);
  *request.mutable_scheduling() = scheduling;
  request.mutable_restart_policy()->set_max_without_progress(1000);
  request.mutable_restart_policy()->set_initial_backoff_ms(20);
  request.mutable_restart_policy()->set_max_backoff_ms(200);
  return Ask(kSubmitJob, request).job().id();
}

v1::Job ClusterBed::Describe(const std::string& job) { return AskAbout(job, kDescribeJob).job(); }

std::vector<v1::JobEvent> ClusterBed::Events(const std::string& job) {
  const v1::ListJobEventsResponse response = AskAbout(job, kListJobEvents);
  return {response.events().begin(), response.events().end()};
}

std::vector<v1::RecipeRevision> ClusterBed::Revisions(const std::string& job) {
  const v1::ListRecipeRevisionsResponse response = AskAbout(job, kListRecipeRevisions);
  return {response.revisions().begin(), response.revisions().end()};
}

std::vector<v1::Checkpoint> ClusterBed::Checkpoints(const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.mutable_page()->set_size(1000);
  const v1::ListCheckpointsResponse response = AskAbout(job, kListCheckpoints, request);
  return {response.checkpoints().begin(), response.checkpoints().end()};
}

void ClusterBed::ExpectState(const std::string& job, v1::JobState state) {
  EXPECT_TRUE(watch_->AwaitState(job, state, kPatience))
      << "waiting for " << v1::JobState_Name(state) << "\n"
      << Story(job);
}

void ClusterBed::ExpectStep(const std::string& job, int64_t step) {
  EXPECT_TRUE(watch_->AwaitStep(job, step, kPatience)) << "waiting for step " << step << "\n"
                                                       << Story(job);
}

void ClusterBed::ExpectSeen(const std::string& job,
                            const std::function<bool(const JobWatch::Seen&)>& holds) {
  EXPECT_TRUE(watch_->Await(job, holds, kPatience)) << Story(job);
}

void ClusterBed::ExpectProgress(const std::string& job) {
  const int64_t next = Describe(job).next_step();
  ExpectSeen(job, [next](const JobWatch::Seen& seen) {
    return seen.job.state() == v1::JOB_STATE_RUNNING && seen.job.next_step() > next + 10;
  });
}

v1::JobEvent ClusterBed::ExpectEvent(const std::string& job,
                                     const std::function<bool(const v1::JobEvent&)>& holds) {
  v1::JobEvent last;
  ExpectSeen(job, [&](const JobWatch::Seen& seen) {
    const auto found = std::find_if(seen.events.rbegin(), seen.events.rend(),
                                    [&](const auto& event) { return holds(event.second); });
    if (found != seen.events.rend()) last = found->second;
    return found != seen.events.rend();
  });
  return last;
}

void ClusterBed::ExpectCopied(const std::string& job) {
  EXPECT_TRUE(Eventually([&] {
    const std::vector<v1::Checkpoint> checkpoints = Checkpoints(job);
    return std::any_of(checkpoints.begin(), checkpoints.end(), [&](const v1::Checkpoint& one) {
      return IsCopied(DescribeCheckpoint(one.ref()));  // none if it was deleted meanwhile
    });
  })) << "not replicated in time\n"
      << Story(job);
}

v1::DescribeCheckpointResponse ClusterBed::DescribeCheckpoint(const v1::CheckpointRef& ref) {
  v1::DescribeCheckpointRequest request;
  *request.mutable_ref() = ref;
  v1::DescribeCheckpointResponse response;
  return Call(kDescribeCheckpoint, request, &response).ok() ? response
                                                            : v1::DescribeCheckpointResponse();
}

v1::DescribeCheckpointResponse ClusterBed::NewestCheckpoint(const std::string& job) {
  v1::CheckpointRef newest;
  newest.set_job(job);
  newest.set_step(-1);
  return DescribeCheckpoint(newest);
}

bool IsCopied(const v1::DescribeCheckpointResponse& checkpoint) {
  const auto& shards = checkpoint.shards();
  return !shards.empty() &&
         std::all_of(shards.begin(), shards.end(),
                     [](const v1::CheckpointShard& shard) { return shard.holders_size() >= 2; });
}

void ClusterBed::Drain(const std::string& worker, bool cordon_only) {
  v1::DrainWorkerRequest request;
  request.set_worker(worker);
  request.set_cordon_only(cordon_only);
  (void)Ask(kDrainWorker, request);
}

void ClusterBed::ExpectUndisturbedLosses(const std::string& job, const TinyJob& spec) {
  EXPECT_EQ(FirstDifference(LossBits(EventLog(job)), UndisturbedLosses(spec)), "") << Story(job);
}

void ClusterBed::ExpectUndisturbedUntilCancelled(const std::string& job, TinyJob spec) {
  (void)AskAbout(job, kCancelJob);
  ExpectState(job, v1::JOB_STATE_CANCELLED);
  spec.steps = static_cast<int64_t>(LossBits(EventLog(job)).size());
  EXPECT_EQ(Describe(job).checkpoint_step(), spec.steps) << Story(job);
  ExpectUndisturbedLosses(job, spec);
}

void ClusterBed::ExpectEachStepOnce(const std::string& job) {
  const v1::Job now = Describe(job);
  EXPECT_EQ(now.blames_size(), 0) << Story(job);
  for (int i = 0; i + 1 < now.recent_attempts_size(); ++i) {
    EXPECT_EQ(now.recent_attempts(i).outcome(), v1::ATTEMPT_OUTCOME_STOPPED) << Story(job);
  }
  const std::vector<json> events = EventLog(job);
  EXPECT_EQ(EventsOf(events, "step").size(), LossBits(events).size()) << Story(job);
}

std::string ClusterBed::Story(const std::string& job) {
  std::string story = Describe(job).ShortDebugString();
  for (const v1::JobEvent& event : Events(job)) {
    absl::StrAppend(&story, "\n  ", event.number(), " ", event.text());
  }
  for (const auto& entry : fs::directory_iterator(cluster_->paths().Logs())) {
    absl::StrAppend(&story, "\n", entry.path().filename().string(), ":\n",
                    LogTail(entry.path().string()));
  }
  return story;
}

std::vector<json> ClusterBed::EventLog(const std::string& job) const {
  // By start time. Ranks of an ended attempt that are not stopped yet may still write to one
  // worker's log while the next attempt writes to another's.
  std::multimap<std::string, std::vector<json>> attempts;
  for (const auto& entry : fs::directory_iterator(cluster_->paths().directory)) {
    auto attempt = attempts.end();
    const fs::path log = entry.path() / "jobs" / job / "events.jsonl";
    for (json& event : ReadEvents(log, BrokenLines::kSkip)) {
      if (event.at("event") == "start" || attempt == attempts.end()) {
        attempt = attempts.emplace(event.at("time"), std::vector<json>());
      }
      attempt->second.push_back(std::move(event));
    }
  }
  std::vector<json> events;
  for (const auto& [began, attempt] : attempts) {
    events.insert(events.end(), attempt.begin(), attempt.end());
  }
  return events;
}

const std::map<int64_t, uint64_t>& ClusterBed::UndisturbedLosses(const TinyJob& job) {
  // Every bed has the same corpus, and checkpoints change no loss.
  static auto& known = *new std::map<std::string, std::map<int64_t, uint64_t>>();
  TinyJob alone = job;
  alone.every = 0;
  alone.keep_last = TinyJob().keep_last;
  const auto [at, added] = known.try_emplace(alone.Yaml("corpus"));
  if (added) {
    at->second = LossBits(RunUndisturbed(TestPrograms().trainer, alone.Yaml(corpus()),
                                         absl::StrCat(root_, "/alone-", known.size())));
  }
  return at->second;
}

std::vector<ClusterBed::Rank> ClusterBed::LiveRanks() const {
  std::vector<Rank> ranks;
  for (const auto& worker : fs::directory_iterator(cluster_->paths().directory)) {
    const fs::path records = worker.path() / "processes";
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(records, none)) {
      // JOB.ATTEMPT.RANK.process
      const std::string name = entry.path().stem();
      const size_t second = name.rfind('.');
      if (entry.path().extension() != ".process" || second == std::string::npos) continue;
      const size_t first = name.rfind('.', second - 1);
      std::ifstream file(entry.path());
      const json record = json::parse(
          std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()},
          nullptr, false);
      Rank rank = {.worker = worker.path().filename(), .job = name.substr(0, first)};
      // A rank that has just ended has removed its record.
      if (first == std::string::npos || !record.is_object() ||
          !absl::SimpleAtoi(name.substr(first + 1, second - first - 1), &rank.attempt) ||
          !absl::SimpleAtoi(name.substr(second + 1), &rank.rank)) {
        continue;
      }
      rank.process = {.pid = record.at("pid"),
                      .start_ticks = record.at("start_ticks"),
                      .boot_id = record.at("boot_id")};
      ranks.push_back(std::move(rank));
    }
  }
  std::sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) {
    return std::tie(a.job, a.attempt, a.rank) < std::tie(b.job, b.attempt, b.rank);
  });
  return ranks;
}

ClusterBed::Rank ClusterBed::LiveRank(const std::string& job, int32_t number) {
  for (const Rank& rank : LiveRanks()) {
    if (rank.job == job && rank.rank == number) return rank;
  }
  ADD_FAILURE() << "rank " << number << " of " << job << " does not run\n" << Story(job);
  return {};
}

void ClusterBed::Kill(const std::string& role) {
  const absl::Status killed = cluster_->Signal(role, SIGKILL);
  EXPECT_TRUE(killed.ok()) << killed;
  const absl::Status ended = cluster_->AwaitEnd(role, kPatience);
  EXPECT_TRUE(ended.ok()) << ended;
}

void ClusterBed::Stop(const std::string& role, std::chrono::milliseconds grace) {
  const absl::Status asked = cluster_->Signal(role, SIGTERM);
  EXPECT_TRUE(asked.ok()) << asked;
  const absl::Status ended = cluster_->AwaitEnd(role, grace);
  EXPECT_TRUE(ended.ok()) << ended;
}

void ClusterBed::SetPrograms(const ClusterPrograms& programs) {
  cluster_options_.programs = programs;
  cluster_ = std::make_unique<LocalCluster>(cluster_options_);
}

void ClusterBed::SetCoordinatorFlags(std::vector<std::string> flags) {
  AddCoordinatorDefaults(lease_, flags);
  cluster_options_.coordinator_flags = std::move(flags);
  cluster_ = std::make_unique<LocalCluster>(cluster_options_);
}

void ClusterBed::Restart(const std::string& role) {
  const absl::Status started = cluster_->Start(role);
  EXPECT_TRUE(started.ok()) << started;
  const absl::Status ready = cluster_->AwaitReady(role);
  EXPECT_TRUE(ready.ok()) << ready;
}

}  // namespace nibble
