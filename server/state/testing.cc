#include "server/state/testing.h"

#include <optional>
#include <set>
#include <utility>

#include "common/status_macros.h"
#include "gtest/gtest.h"

namespace nibble {

TestCluster::TestCluster() {
  EXPECT_EQ(Run(DecideStart(state_, "test", {}, false, {"coordinator", now_ms})), absl::OkStatus());
}

absl::Status TestCluster::Run(MaybeUpdate update) {
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<v1::Update> decided, std::move(update));
  return decided ? Apply(*decided) : absl::OkStatus();
}

absl::Status TestCluster::Apply(const v1::Update& update) {
  const absl::Status valid = state_.Validate(update);
  const absl::StatusOr<std::vector<EntityChange>> applied = state_.Apply(update);
  EXPECT_EQ(valid, applied.status());  // Validate changes nothing and returns what Apply will
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<EntityChange> changes, applied);
  journal_.push_back(update.SerializeAsString());
  for (const EntityChange& change : changes) {
    const auto key = std::pair<int, std::string>(change.kind, change.key);
    if (change.value) {
      store_[key] = *change.value;
    } else {
      EXPECT_EQ(store_.erase(key), 1u) << change.key;
    }
  }
  return absl::OkStatus();
}

std::string TestCluster::Spec(const std::string& name, int ranks) {
  return absl::StrCat("name: ", name,
                      "\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
                      "data: {train: [corpus.txt], sequence: 128}\n"
                      "training: {steps: 1000, batch: 16}\n"
                      "optimizer: {warmup_steps: 10, decay_fraction: 0.2}\n"
                      "resources: {ranks: ",
                      ranks, "}\n");
}

absl::Status TestCluster::Register(const std::string& name, int64_t incarnation, int slots) {
  v1::WorkerIdentity identity;
  identity.set_name(name);
  identity.set_incarnation(incarnation);
  identity.set_address(name + ":7000");
  identity.set_slots(slots);
  identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
  return Run(DecideRegister(state_, identity, caller()));
}

void TestCluster::AddWorkers(int count, int slots) {
  for (int i = 1; i <= count; ++i) {
    EXPECT_EQ(Register(absl::StrCat("w", i), 1, slots), absl::OkStatus());
  }
}

std::string TestCluster::Submit(int ranks, const std::string& name) {
  v1::SubmitJobRequest request;
  request.set_request_id(Id());
  request.set_spec_yaml(Spec(name, ranks));
  const auto response = Do<v1::SubmitJobResponse>(request);
  EXPECT_EQ(response.status(), absl::OkStatus());
  return response.ok() ? response->job().id() : "";
}

absl::Status TestCluster::Launch(const std::string& job) {
  std::vector<SlotChoice> choices;
  int needed = Job(job).scheduling().allowed_ranks(0);
  for (const auto& [name, worker] : state_.tables().workers) {
    if (needed == 0) break;
    bool usable = worker->present() && worker->mode() == v1::WORKER_MODE_OPEN;
    for (const v1::WorkerBlame& blame : Job(job).blames()) {
      usable = usable && !(blame.excluded() && blame.worker() == name);
    }
    if (!usable) continue;
    std::set<int32_t> used;
    for (const std::string& other : state_.index().GangsOn(name)) {
      for (const v1::Placement& placement : Job(other).attempt().placements()) {
        if (placement.worker() != name) continue;
        used.insert(placement.slots().begin(), placement.slots().end());
      }
    }
    SlotChoice choice{name, {}};
    for (int32_t slot = 0; slot < worker->identity().slots() && needed > 0; ++slot) {
      if (used.contains(slot)) continue;
      choice.slots.push_back(slot);
      --needed;
    }
    if (!choice.slots.empty()) choices.push_back(choice);
  }
  if (needed > 0) return absl::UnavailableError("not enough slots");
  const auto loadable = LoadableCheckpoints(state_, Job(job));
  std::optional<v1::CheckpointRef> resume;
  if (!loadable.empty()) resume = loadable.front()->ref();
  return Run(DecideLaunch(state_, job, choices, resume, "slots are free", caller()));
}

absl::Status TestCluster::Report(const std::string& job, const std::string& worker,
                                 v1::RankPhase phase, int64_t step, int64_t attempt,
                                 const std::string& detail, v1::FailureCause cause) {
  v1::GangReport report;
  report.set_job(job);
  report.set_attempt(attempt == 0 ? Job(job).last_attempt() : attempt);
  report.set_phase(phase);
  report.set_next_step(step);
  report.set_detail(detail);
  report.set_cause(cause);
  const v1::WorkerRecord* const known = state_.FindWorker(worker);
  return Run(DecideGangReport(
      state_, worker, known == nullptr ? 1 : known->identity().incarnation(), report, caller()));
}

absl::Status TestCluster::ReportAll(const std::string& job, v1::RankPhase phase, int64_t step) {
  const v1::Attempt attempt = Job(job).attempt();
  for (const v1::Placement& placement : attempt.placements()) {
    NIBBLE_RETURN_IF_ERROR(Report(job, placement.worker(), phase, step, attempt.number()));
  }
  return absl::OkStatus();
}

absl::Status TestCluster::Shard(const std::string& job, int64_t step, int32_t rank,
                                int64_t attempt) {
  v1::ShardReport report;
  report.mutable_ref()->set_job(job);
  report.mutable_ref()->set_step(step);
  report.mutable_ref()->set_attempt(attempt == 0 ? Job(job).last_attempt() : attempt);
  report.set_rank(rank);
  report.set_world(Job(job).scheduling().allowed_ranks(0));
  report.set_bytes(1000);
  report.set_manifest_crc32c(static_cast<uint32_t>(rank + 1));
  std::string worker = "w1";
  for (const v1::Placement& placement : Job(job).attempt().placements()) {
    if (rank >= placement.first_rank() && rank < placement.first_rank() + placement.slots_size()) {
      worker = placement.worker();
    }
  }
  return Run(DecideShardReport(state_, worker, report, caller()));
}

absl::Status TestCluster::Checkpoint(const std::string& job, int64_t step) {
  const int32_t world = Job(job).attempt().world();
  for (int32_t rank = 0; rank < world; ++rank) {
    NIBBLE_RETURN_IF_ERROR(Shard(job, step, rank));
  }
  return absl::OkStatus();
}

absl::Status TestCluster::Start(const std::string& job) {
  NIBBLE_RETURN_IF_ERROR(Launch(job));
  return ReportAll(job, v1::RANK_PHASE_RUNNING);
}

absl::StatusOr<State> Replay(const std::vector<std::string>& journal, size_t length) {
  State state;
  for (size_t i = 0; i < length; ++i) {
    v1::Update update;
    if (!update.ParseFromString(journal[i])) return absl::DataLossError("journal");
    NIBBLE_RETURN_IF_ERROR(state.Apply(update).status());
  }
  return state;
}

absl::StatusOr<State> Load(const std::map<std::pair<int, std::string>, std::string>& store) {
  StateLoader loader;
  for (const auto& [key, value] : store) {
    NIBBLE_RETURN_IF_ERROR(loader.Add(static_cast<v1::EntityKind>(key.first), key.second, value));
  }
  return loader.Finish();
}

}  // namespace nibble
