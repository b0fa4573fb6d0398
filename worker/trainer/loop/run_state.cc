#include "worker/trainer/loop/run_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/model_spec.h"
#include "recipe/recipe_json.h"
#include "worker/weights/checkpoint_weights.h"

namespace nibble {
namespace {

constexpr int64_t kStagedElements = int64_t{1} << 20;

// This rank's part of parameter `param`.
struct Owned {
  int64_t begin = 0, count = 0;  // of the parameter
  int64_t state = 0;             // where its moments begin
  float* weights = nullptr;      // [count]
};
Owned OwnedOf(const Parameters& parameters, int64_t param, const ShardedAdamW& optimizer) {
  const int64_t bucket = parameters.bucket_of(param);
  const ShardedAdamW::Part& part = optimizer.parts()[bucket];
  const int64_t at = parameters.offset(param);
  const int64_t end = at + parameters.outline().params[param].elements();
  const int64_t from = std::max(at, part.first);
  const int64_t to = std::min(end, part.first + part.elements);
  return {.begin = from - at,
          .count = std::max<int64_t>(to - from, 0),
          .state = part.state + from - part.first,
          .weights = optimizer.weights(bucket) + from - part.first};
}

// Loads a range of a stored tensor into device memory, through a buffer of bounded size.
absl::Status LoadRange(const CheckpointReader& checkpoint, const std::string& name, int64_t first,
                       int64_t count, Memory& memory, float* out) {
  std::vector<float> staged(std::min(count, kStagedElements));
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(count - done, kStagedElements);
    const size_t bytes = static_cast<size_t>(n) * sizeof(float);
    NIBBLE_RETURN_IF_ERROR(checkpoint.Load(name, first + done, n,
                                           {reinterpret_cast<std::byte*>(staged.data()), bytes}));
    NIBBLE_RETURN_IF_ERROR(memory.CopyIn(out + done, staged.data(), bytes));
    done += n;
  }
  return absl::OkStatus();
}

// DataLoss if the tensor is missing or has another shape: another program wrote it.
absl::Status CheckTensor(const CheckpointReader& checkpoint, const std::string& name,
                         FileDType dtype, const std::vector<int64_t>& shape) {
  const auto found = checkpoint.tensors().find(name);
  if (found == checkpoint.tensors().end()) {
    return absl::DataLossError(absl::StrCat("the checkpoint has no tensor ", name));
  }
  if (found->second.dtype != dtype || found->second.shape != shape) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint's tensor ", name, " has another type or shape"));
  }
  return absl::OkStatus();
}

// The values of a guard's window, then zeros.
void PutWindow(const std::vector<double>& values, absl::Span<std::byte> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size() * sizeof(double));
}

absl::Status LoadWindow(const CheckpointReader& checkpoint, const char* name, int64_t count,
                        std::vector<double>& values) {
  const auto stored = checkpoint.tensors().find(name);
  if (stored == checkpoint.tensors().end() || stored->second.dtype != FileDType::kF64 ||
      count < 0 || count > stored->second.elements) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint's tensor ", name, " does not hold ", count, " values"));
  }
  values.resize(static_cast<size_t>(count));
  return checkpoint.Load(
      name, 0, count,
      {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(double)});
}

// The spec of the job that made the checkpoint.
absl::StatusOr<JobSpec> SpecOf(const CheckpointReader& checkpoint) {
  absl::StatusOr<JobSpec> spec = ParseJobSpec(checkpoint.manifest().header.spec);
  if (spec.ok()) return spec;
  return absl::FailedPreconditionError(absl::StrCat("the checkpoint's job spec cannot be read: ",
                                                    std::string(spec.status().message())));
}

// Compares the labels if both are known. Older checkpoints have no label but the tokenizer that the
// spec named, in which bytes may be the default of a spec that named none.
bool SameData(DataSpec then, DataSpec now) {
  const bool known = !then.tokenizer_label.empty() && !now.tokenizer_label.empty();
  if (known && then.tokenizer_label != now.tokenizer_label) return false;
  if (known || (then.tokenizer == JobTokenizer::kBytes && now.tokenizer == JobTokenizer::kData &&
                now.tokenizer_model.empty())) {
    then.tokenizer = now.tokenizer;
    then.tokenizer_model = now.tokenizer_model;
  }
  then.tokenizer_label = now.tokenizer_label;
  return then == now;
}

}  // namespace

std::string DecisiveDifference(const JobSpec& then, const JobSpec& now) {
  if (then.model != now.model) return "model";
  if (!SameData(then.data, now.data)) return "data";
  if (then.training.batch != now.training.batch) return "training.batch";
  if (then.training.seed != now.training.seed) return "training.seed";
  if (then.training.precision != now.training.precision) return "training.precision";
  return "";
}

RunState::RunState(const JobSpec& spec, const Device& device, Trainer& trainer)
    : spec_(spec), device_(device), trainer_(trainer) {
  const Parameters& parameters = trainer.parameters();
  const ShardedAdamW& optimizer = trainer.optimizer();
  const std::vector<ParamInfo>& params = trainer.outline().params;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    const Owned owned = OwnedOf(parameters, param, optimizer);
    if (owned.count == 0) continue;
    const auto add = [&](const char* prefix, const float* from) {
      slices_.push_back({.name = absl::StrCat(prefix, params[i].name),
                         .dtype = FileDType::kF32,
                         .shape = params[i].shape,
                         .first = owned.begin,
                         .count = owned.count});
      pieces_.push_back({from, static_cast<size_t>(owned.count) * sizeof(float)});
    };
    add(kMasterPrefix, owned.weights);
    add(kFirstMomentPrefix, optimizer.first_moment() + owned.state);
    add(kSecondMomentPrefix, optimizer.second_moment() + owned.state);
  }
  if (trainer.rank() == 0) {
    slices_.push_back({.name = kCounters,
                       .dtype = FileDType::kI64,
                       .shape = {kCounterCount},
                       .count = kCounterCount});
    const int64_t window = spec.guards.spike_window;
    slices_.push_back(
        {.name = kSpikeLosses, .dtype = FileDType::kF64, .shape = {window}, .count = window});
    slices_.push_back({.name = kNormGuard,
                       .dtype = FileDType::kI64,
                       .shape = {kNormGuardCount},
                       .count = kNormGuardCount});
    slices_.push_back(
        {.name = kGradientNorms, .dtype = FileDType::kF64, .shape = {window}, .count = window});
    if (spec.early_stop.patience > 0) {
      slices_.push_back({.name = kEarlyStop,
                         .dtype = FileDType::kF64,
                         .shape = {kEarlyStopCount},
                         .count = kEarlyStopCount});
    }
  }
}

absl::Status RunState::Save(absl::Span<const absl::Span<std::byte>> buffers) {
  if (saved_ == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(updated_, device_.backend.NewEvent());
    NIBBLE_ASSIGN_OR_RETURN(saved_, device_.backend.NewEvent());
  }
  Queue& transfers = device_.backend.transfers();
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().Record(*updated_));
  NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*updated_));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(transfers.CopyOut(buffers[i].data(), pieces_[i].from, pieces_[i].bytes));
  }
  NIBBLE_RETURN_IF_ERROR(transfers.Record(*saved_));
  trainer_.UpdateAfter(*saved_);
  if (pieces_.size() == slices_.size()) return absl::OkStatus();
  const Trainer::Position position = trainer_.position();
  const std::array<int64_t, kCounterCount> counters = {
      position.updates, static_cast<int64_t>(position.guard.values.size()),
      position.guard.in_a_row};
  const std::array<int64_t, kNormGuardCount> norm_guard = {
      static_cast<int64_t>(position.norm_guard.values.size()), position.norm_guard.in_a_row};
  // In the order of the slices.
  const absl::Span<const absl::Span<std::byte>> own = buffers.subspan(pieces_.size());
  std::memcpy(own[0].data(), counters.data(), own[0].size());
  PutWindow(position.guard.values, own[1]);
  std::memcpy(own[2].data(), norm_guard.data(), own[2].size());
  PutWindow(position.norm_guard.values, own[3]);
  if (spec_.early_stop.patience > 0) {
    const std::array<double, kEarlyStopCount> early = {
        position.early_stop.best, static_cast<double>(position.early_stop.since)};
    std::memcpy(own[4].data(), early.data(), own[4].size());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RunState::Saved(bool wait) {
  if (!wait) return device_.backend.HasPassed(*saved_);
  NIBBLE_RETURN_IF_ERROR(device_.backend.Wait(*saved_));
  return true;
}

CheckpointHeader RunState::Header() const {
  return {.identity = {.cluster = "", .job = spec_.name},
          .step = trainer_.next_step(),
          .data_position = trainer_.next_step() * spec_.training.batch,
          .seed = spec_.training.seed,
          .formula_version = kFormulaVersion,
          .world = static_cast<int32_t>(spec_.resources.ranks),
          .recipe_timeline = ToJson(trainer_.timeline()),
          .spec = ToYaml(spec_),
          .products = device_.gemm.Choices()};
}

absl::Status RunState::LoadWeights(const CheckpointReader& checkpoint) {
  const Parameters& parameters = trainer_.parameters();
  const std::vector<ParamInfo>& params = trainer_.outline().params;
  for (size_t i = 0; i < params.size(); ++i) {
    const std::string name = absl::StrCat(kMasterPrefix, params[i].name);
    NIBBLE_RETURN_IF_ERROR(CheckTensor(checkpoint, name, FileDType::kF32, params[i].shape));
    const auto param = static_cast<int64_t>(i);
    Owned loaded = {.count = params[i].elements(), .weights = parameters.weight(param)};
    if (parameters.weights_are_gathered()) {
      loaded = OwnedOf(parameters, param, trainer_.optimizer());
      if (loaded.count == 0) continue;
    }
    NIBBLE_RETURN_IF_ERROR(
        LoadRange(checkpoint, name, loaded.begin, loaded.count, device_.memory(), loaded.weights));
  }
  return absl::OkStatus();
}

absl::Status RunState::LoadMoments(const CheckpointReader& checkpoint) {
  const Parameters& parameters = trainer_.parameters();
  const ShardedAdamW& optimizer = trainer_.optimizer();
  const std::vector<ParamInfo>& params = trainer_.outline().params;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    const Owned owned = OwnedOf(parameters, param, optimizer);
    if (owned.count == 0) continue;
    const std::pair<const char*, float*> moments[] = {
        {kFirstMomentPrefix, optimizer.first_moment()},
        {kSecondMomentPrefix, optimizer.second_moment()}};
    for (const auto& [prefix, moment] : moments) {
      const std::string name = absl::StrCat(prefix, params[i].name);
      NIBBLE_RETURN_IF_ERROR(CheckTensor(checkpoint, name, FileDType::kF32, params[i].shape));
      NIBBLE_RETURN_IF_ERROR(LoadRange(checkpoint, name, owned.begin, owned.count, device_.memory(),
                                       moment + owned.state));
    }
  }
  return absl::OkStatus();
}

absl::Status RunState::LoadCounters(const CheckpointReader& checkpoint,
                                    Trainer::Position& position) {
  NIBBLE_RETURN_IF_ERROR(CheckTensor(checkpoint, kCounters, FileDType::kI64, {kCounterCount}));
  std::array<int64_t, kCounterCount> counters = {};
  NIBBLE_RETURN_IF_ERROR(
      checkpoint.Load(kCounters, 0, kCounterCount,
                      {reinterpret_cast<std::byte*>(counters.data()), sizeof counters}));
  position.updates = counters[0];
  position.guard.in_a_row = counters[2];
  NIBBLE_RETURN_IF_ERROR(LoadWindow(checkpoint, kSpikeLosses, counters[1], position.guard.values));
  // Checkpoints of before this guard have no state of it.
  if (!checkpoint.tensors().contains(kNormGuard)) return LoadEarlyStop(checkpoint, position);
  NIBBLE_RETURN_IF_ERROR(CheckTensor(checkpoint, kNormGuard, FileDType::kI64, {kNormGuardCount}));
  std::array<int64_t, kNormGuardCount> norm_guard = {};
  NIBBLE_RETURN_IF_ERROR(
      checkpoint.Load(kNormGuard, 0, kNormGuardCount,
                      {reinterpret_cast<std::byte*>(norm_guard.data()), sizeof norm_guard}));
  position.norm_guard.in_a_row = norm_guard[1];
  NIBBLE_RETURN_IF_ERROR(
      LoadWindow(checkpoint, kGradientNorms, norm_guard[0], position.norm_guard.values));
  return LoadEarlyStop(checkpoint, position);
}

absl::Status RunState::LoadEarlyStop(const CheckpointReader& checkpoint,
                                     Trainer::Position& position) {
  // A run may start to use early stopping when it resumes.
  if (spec_.early_stop.patience == 0 || !checkpoint.tensors().contains(kEarlyStop)) {
    return absl::OkStatus();
  }
  NIBBLE_RETURN_IF_ERROR(CheckTensor(checkpoint, kEarlyStop, FileDType::kF64, {kEarlyStopCount}));
  std::array<double, kEarlyStopCount> early = {};
  NIBBLE_RETURN_IF_ERROR(checkpoint.Load(
      kEarlyStop, 0, kEarlyStopCount, {reinterpret_cast<std::byte*>(early.data()), sizeof early}));
  constexpr double kMostSince = 1e9;  // more than any run validates
  if (!(early[1] >= 0 && early[1] <= kMostSince)) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint's tensor ", kEarlyStop, " counts ", early[1], " validations"));
  }
  position.early_stop = {.best = early[0], .since = static_cast<int64_t>(early[1])};
  return absl::OkStatus();
}

absl::Status RunState::LoadWeightsOf(const CheckpointReader& checkpoint) {
  NIBBLE_ASSIGN_OR_RETURN(const JobSpec theirs, SpecOf(checkpoint));
  const absl::Status fits = CheckSameShapes(spec_.model, theirs.model, theirs.name);
  if (!fits.ok()) return absl::FailedPreconditionError(fits.message());
  return LoadWeights(checkpoint);
}

absl::StatusOr<std::string> RunState::Load(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.manifest().header;
  if (header.formula_version != kFormulaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint's formula version is ", header.formula_version,
                     "; this trainer computes by version ", kFormulaVersion));
  }
  NIBBLE_ASSIGN_OR_RETURN(const JobSpec then, SpecOf(checkpoint));
  if (const std::string field = DecisiveDifference(then, spec_); !field.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(field, " differs from that of the checkpoint of step ", header.step,
                     "; only a run with the same value can resume from it"));
  }
  NIBBLE_ASSIGN_OR_RETURN(Timeline timeline, TimelineFromJson(header.recipe_timeline));
  Trainer::Position position = {.next_step = header.step, .timeline = std::move(timeline)};
  NIBBLE_RETURN_IF_ERROR(LoadCounters(checkpoint, position));
  NIBBLE_RETURN_IF_ERROR(LoadWeights(checkpoint));
  NIBBLE_RETURN_IF_ERROR(LoadMoments(checkpoint));
  NIBBLE_RETURN_IF_ERROR(trainer_.Restore(std::move(position)));
  const absl::Status products = device_.gemm.LoadChoices(header.products);
  if (products.ok()) return "";
  if (!absl::IsFailedPrecondition(products)) return products;
  return absl::StrCat(
      "the losses from here on are not those of an undisturbed run in their last bits: ",
      products.message());
}

}  // namespace nibble
