// Feeds arbitrary bytes to the coordinator's state of a running cluster: as an entry of the
// journal, and as a change of a recipe. Either they are refused with a message and change nothing,
// or a store can contain the resulting state and a restart can load it.
//
// The first byte selects: even, an Update, whose sequence and time are corrected, since no mutation
// would hit them; odd, a SetRecipeRequest for the existing job.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "google/protobuf/stubs/logging.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace {

using nibble::State;
namespace v1 = nibble::v1;

constexpr int64_t kNow = 1'000'000'000;
constexpr char kJob[] = "train-1";

void Check(bool ok, const char* claim, const absl::Status& status = absl::OkStatus()) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s: %s\n", claim, status.ToString().c_str());
  std::abort();
}

nibble::Caller At(int64_t ms) { return {"ann", kNow + ms}; }

void Take(State& state, const absl::StatusOr<std::optional<v1::Update>>& update) {
  Check(update.ok() && update->has_value(), "the initial cluster is valid", update.status());
  const auto applied = state.Apply(**update);
  Check(applied.ok(), "the initial cluster is valid", applied.status());
}

// A cluster with a worker, a job with a running attempt, and a checkpoint of it.
State MakeCluster() {
  State state;
  Take(state, nibble::DecideStart(state, "test", {}, false, At(0)));
  v1::WorkerIdentity identity;
  identity.set_name("w1");
  identity.set_incarnation(1);
  identity.set_address("w1:7000");
  identity.set_slots(2);
  identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
  Take(state, nibble::DecideRegister(state, identity, At(1)));
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  submit.set_spec_yaml(
      "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
      "data: {train: [corpus.txt], sequence: 128}\ntraining: {steps: 1000, batch: 16}\n");
  const auto submitted = nibble::Decide(state, submit, At(2));
  Check(submitted.ok(), "a job can be submitted", submitted.status());
  Take(state, submitted->update);
  Take(state, nibble::DecideLaunch(state, kJob, {{"w1", {0}}}, std::nullopt, "free", At(3)));
  v1::GangReport report;
  report.set_job(kJob);
  report.set_attempt(1);
  report.set_phase(v1::RANK_PHASE_RUNNING);
  Take(state, nibble::DecideGangReport(state, "w1", 1, report, At(4)));
  v1::ShardReport shard;
  shard.mutable_ref()->set_job(kJob);
  shard.mutable_ref()->set_step(10);
  shard.mutable_ref()->set_attempt(1);
  shard.set_world(1);
  shard.set_bytes(1000);
  Take(state, nibble::DecideShardReport(state, "w1", shard, At(5)));
  return state;
}

void ApplyOrRefuse(const State& before, const v1::Update& update) {
  State state(before);
  const absl::Status valid = state.Validate(update);
  const auto applied = state.Apply(update);
  Check(valid.code() == applied.status().code(), "Validate and Apply agree", valid);
  if (!valid.ok()) {
    Check(!valid.message().empty(), "a refusal has a reason", valid);
    Check(state.sequence() == before.sequence(), "a refused update changes nothing", valid);
    return;
  }
  nibble::StateLoader loader;
  for (const nibble::EntityChange& entity : nibble::Snapshot(state)) {
    const absl::Status added = loader.Add(entity.kind, entity.key, *entity.value);
    Check(added.ok(), "the stored state can be loaded", added);
  }
  const auto loaded = loader.Finish();
  Check(loaded.ok(), "the state after an update can be loaded", loaded.status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const State* const kCluster = new State(MakeCluster());
  static const google::protobuf::LogSilencer silence;
  if (size == 0) return 0;
  const bool is_update = data[0] % 2 == 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (is_update) {
    v1::Update update;
    if (!update.ParseFromString(bytes)) return 0;
    update.set_sequence(kCluster->sequence() + 1);
    update.set_time_unix_ms(kNow + 100);
    if (update.author().empty()) update.set_author("ann");
    ApplyOrRefuse(*kCluster, update);
    return 0;
  }
  v1::SetRecipeRequest request;
  if (!request.ParseFromString(bytes)) return 0;
  request.set_request_id("request-2");
  request.set_job(kJob);
  request.set_expected_revision(-1);
  const auto decided = nibble::Decide(*kCluster, request, At(100), nibble::LiveProgress{});
  if (!decided.ok()) {
    Check(!decided.status().message().empty(), "a refusal has a reason", decided.status());
    return 0;
  }
  if (decided->update.has_value()) {
    const absl::Status valid = kCluster->Validate(*decided->update);
    Check(valid.ok(), "a decided update is valid", valid);
    ApplyOrRefuse(*kCluster, *decided->update);
  }
  return 0;
}
