#include "tests/histories/simulated_worker.h"

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// What every rank stores. Its bytes are the same in each checkpoint.
const checkpoint_testing::State& RankState() {
  static const auto* const state =
      new checkpoint_testing::State(checkpoint_testing::RandomState(7, 2, 40));
  return *state;
}

// The manifest of a rank's shard, made once by writing it.
ShardManifest ManifestOf(int64_t step, int64_t attempt, int32_t rank, int32_t world) {
  static auto* const made = new std::map<std::pair<int32_t, int32_t>, ShardManifest>;
  auto at = made->find({rank, world});
  if (at == made->end()) {
    std::string scratch = "/tmp/nibble-history-shard-XXXXXX";
    EXPECT_NE(mkdtemp(scratch.data()), nullptr);
    auto store = CheckpointStore::Open(scratch + "/store", checkpoint_testing::TestOptions());
    EXPECT_TRUE(store.ok()) << store.status();
    auto shard = checkpoint_testing::WriteShard(
        **store, 1, 1, rank, RankState(), checkpoint_testing::EvenSlices(RankState(), rank, world));
    EXPECT_TRUE(shard.ok()) << shard.status();
    at = made->emplace(std::pair(rank, world), *std::move(shard)).first;
    store->reset();
    fs::remove_all(scratch);
  }
  ShardManifest manifest = at->second;
  manifest.step = step;
  manifest.attempt = attempt;
  return manifest;
}

}  // namespace

std::set<ShardId> SealedShards(const std::string& directory) {
  std::set<ShardId> found;
  std::error_code ignored;
  for (auto at = fs::recursive_directory_iterator(directory, ignored);
       at != fs::recursive_directory_iterator(); at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (!absl::EndsWith(name, ".seal")) continue;
    const auto record = ReadRecord(at->path().string());
    if (!record.ok()) continue;
    const auto shard = DecodeShard(*record);
    if (!shard.ok()) continue;
    // The job's name is the directory below jobs/ or trash/.
    const fs::path below = at->path().lexically_relative(directory);
    auto part = below.begin();
    if (part == below.end()) continue;
    ++part;
    found.emplace(part->string(), shard->step, shard->attempt, shard->rank);
  }
  return found;
}

SimulatedWorker::SimulatedWorker(const std::string& name, std::string directory,
                                 const ManualClock& clock, int64_t incarnation, int64_t trash_bytes,
                                 Source source)
    : name_(name),
      directory_(std::move(directory)),
      source_(std::move(source)),
      incarnation_(incarnation) {
  fs::create_directories(directory_ + "/jobs");
  provenance_ = std::make_unique<Provenance>(directory_, [&clock] { return clock.SteadyMs(); });
  CheckpointRegistry::Options options;
  options.clock = [&clock] { return static_cast<double>(clock.SteadyMs()) / 1000; };
  options.ordered_by = [this](const std::string& job) { return provenance_->StoreOf(job); };
  options.followed = [this] { return provenance_->followed(); };
  options.accepted = [this] { return provenance_->Remember(); };
  trash_ = std::make_unique<WorkerTrash>(directory_ + "/trash", trash_bytes,
                                         [&clock] { return clock.SteadyMs(); });
  trash_->AddTo(options);
  registry_ = std::make_unique<CheckpointRegistry>(std::move(options));
  OpenJobs();
}

SimulatedWorker::~SimulatedWorker() {
  registry_.reset();
  trash_.reset();
  provenance_.reset();
}

void SimulatedWorker::OpenJobs() {
  for (const auto& entry : fs::directory_iterator(directory_ + "/jobs")) {
    const absl::Status opened =
        registry_->OpenJob(entry.path().filename().string(), entry.path().string(),
                           checkpoint_testing::TestIdentity());
    EXPECT_TRUE(opened.ok()) << opened;
  }
}

bool SimulatedWorker::Has(const v1::DesiredReplica& shard) const {
  return registry_->CrcOf(shard.ref(), shard.rank()).ok();
}

void SimulatedWorker::Store(const std::string& job, int64_t step, int64_t attempt, int32_t rank,
                            int32_t world) {
  const std::string home = absl::StrCat(directory_, "/jobs/", job);
  fs::create_directories(home);
  ASSERT_TRUE(registry_->OpenJob(job, home, checkpoint_testing::TestIdentity()).ok());
  const ShardManifest manifest = ManifestOf(step, attempt, rank, world);
  auto writer = registry_->BeginReplica(job, manifest);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const StoredSlice& slice : manifest.slices) {
    ASSERT_TRUE(
        (*writer)->Put(slice.slice, checkpoint_testing::BytesOf(RankState(), slice.slice)).ok());
  }
  const auto sealed = (*writer)->Seal();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const absl::Status added = registry_->AddReplica(
      job, checkpoint_testing::TestHeader(step, attempt, world), *sealed, /*input=*/false);
  ASSERT_TRUE(added.ok()) << added;
}

v1::ConnectRequest SimulatedWorker::Report() {
  v1::ConnectRequest report;
  v1::WorkerIdentity& identity = *report.mutable_identity();
  identity.set_name(name_);
  identity.set_incarnation(incarnation_);
  identity.set_address(name_ + ":7000");
  identity.set_slots(1);
  identity.set_protocol(2);
  identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
  report.set_number(number_);
  report.set_desired_number(desired_number_);
  report.set_all_shards(true);
  std::map<std::string, int64_t> running;
  for (const auto& [job, gang] : gangs_) {
    v1::GangReport& own = *report.add_gangs();
    own.set_job(job);
    own.set_attempt(gang.order.attempt());
    own.set_next_step(gang.step);
    own.set_phase(gang.stopped ? v1::RANK_PHASE_STOPPED : v1::RANK_PHASE_RUNNING);
    own.add_ranks()->set_rank(gang.order.first_rank());
    if (!gang.stopped) running[job] = gang.order.attempt();
  }
  std::vector<v1::ShardReport> shards = registry_->Report(number_);
  if (const v1::StoreIdentity store = provenance_->followed(); !store.id().empty()) {
    *report.mutable_store() = store;
  }
  provenance_->Describe(std::move(shards), running, report);
  trash_->Report(*registry_, report);
  return report;
}

void SimulatedWorker::Exchange(const std::shared_ptr<SimulatedCoordinator>& coordinator) {
  if (connected_.lock() != coordinator) {
    session_ = coordinator->Connect();
    connected_ = coordinator;
    number_ = 0;
    desired_number_ = 0;
  }
  ++number_;
  v1::ConnectResponse desired;
  const absl::Status status = coordinator->Exchange(session_, Report(), desired);
  if (!status.ok()) {
    connected_.reset();
    return;
  }
  Obey(desired);
}

void SimulatedWorker::Obey(const v1::ConnectResponse& desired) {
  const Provenance::Verdict verdict = provenance_->Judge(desired.store());
  if (verdict == Provenance::Verdict::kNotFollowed) {
    EXPECT_TRUE(provenance_->Follow(desired.store()).ok());
    return;
  }
  if (verdict == Provenance::Verdict::kOlder) return;
  if (desired.answered() > 0) {
    provenance_->Answered();
    EXPECT_TRUE(provenance_->SaveChanges().ok());
  }
  for (const v1::DesiredReplica& known : desired.replicas()) {
    registry_->TakeOver(known, desired.store());
  }
  registry_->Answered(desired);
  registry_->AwaitSettled();
  desired_number_ = desired.number();
  trash_->Obey(desired, *registry_, *provenance_);
  ObeyGangs(desired);
  for (const v1::DesiredReplica& shard : desired.replicas()) {
    if (Has(shard)) continue;
    for (const std::string& address : shard.sources()) {
      if (!source_(address, shard)) continue;
      Store(shard.ref().job(), shard.ref().step(), shard.ref().attempt(), shard.rank(), 2);
      break;
    }
  }
}

void SimulatedWorker::ObeyGangs(const v1::ConnectResponse& desired) {
  std::map<std::string, const v1::DesiredGang*> wanted;
  for (const v1::DesiredGang& gang : desired.gangs()) wanted[gang.job()] = &gang;
  for (auto at = gangs_.begin(); at != gangs_.end();) {
    Gang& gang = at->second;
    const auto order = wanted.find(at->first);
    const bool named = order != wanted.end() && order->second->attempt() == gang.order.attempt();
    if (named && order->second->command() == v1::GANG_COMMAND_STOP) {
      gang.stopped = true;
    } else if (named) {
      if (!SameEpoch(gang.store, desired.store())) gang.store = desired.store();
      EXPECT_TRUE(provenance_->RecordOrder(*order->second, desired.store()).ok());
    } else if (gang.stopped || SameEpoch(gang.store, desired.store())) {
      if (!gang.stopped) killed_.insert(absl::StrCat(at->first, "/", gang.order.attempt()));
      at = gangs_.erase(at);
      continue;
    }
    ++at;
  }
  for (const auto& [job, order] : wanted) {
    if (order->command() == v1::GANG_COMMAND_STOP || order->slots().empty()) continue;
    if (gangs_.contains(job)) continue;
    // As Daemon::Launch: no attempt up to one that has run here starts again.
    if (provenance_->AttemptOf(job) >= order->attempt() &&
        provenance_->StoreOf(job).id() == desired.store().id()) {
      continue;
    }
    ASSERT_TRUE(provenance_->RecordOrder(*order, desired.store()).ok());
    gangs_[job] = {.order = *order,
                   .store = desired.store(),
                   .step = order->has_resume() ? order->resume().step() : 0};
  }
}

}  // namespace nibble
