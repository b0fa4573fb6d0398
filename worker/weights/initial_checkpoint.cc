#include "worker/weights/initial_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "recipe/recipe_json.h"
#include "worker/weights/state_names.h"

namespace nibble {
namespace {

// Models are the same where their parameters are and they compute the same; names are free.
absl::Status CheckModels(const JobSpec& spec, const WeightSource& source) {
  const ModelSpec& a = source.outline().spec;
  const ModelSpec& b = spec.model;
  const bool learned = b.positions == Positions::kLearned;
  const bool rope = b.positions == Positions::kRope;
  const std::pair<const char*, bool> fields[] = {
      {"pattern", a.pattern == b.pattern},
      {"vocab", a.vocab == b.vocab},
      {"d_model", a.d_model == b.d_model},
      {"norm", a.norm == b.norm},
      {"norm_eps", a.norm_eps == b.norm_eps},
      {"positions", a.positions == b.positions},
      {"rope_theta", !rope || a.rope_theta == b.rope_theta},
      {"max_positions", !learned || a.max_positions == b.max_positions},
      {"biases", a.biases == b.biases},
      {"tied_head", a.tied_head == b.tied_head},
      {"activation", a.activation == b.activation || b.pattern.find('-') == std::string::npos},
  };
  for (const auto& [field, same] : fields) {
    if (!same) {
      return absl::FailedPreconditionError(absl::StrCat(
          "model.", field, ": that of ", source.description(), " is another than the job's"));
    }
  }
  // Sizes of mixers show in their parameters.
  const absl::StatusOr<Outline> mine = MakeOutline(b);
  if (!mine.ok()) return mine.status();
  const std::vector<ParamInfo>& theirs = source.outline().params;
  for (size_t i = 0; i < mine->params.size() && i < theirs.size(); ++i) {
    const ParamInfo& param = mine->params[i];
    if (theirs[i].name == param.name && theirs[i].shape == param.shape) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "model: ", param.name, " is [", absl::StrJoin(param.shape, ", "), "] in the job, ",
        theirs[i].name, " [", absl::StrJoin(theirs[i].shape, ", "), "] in ", source.description()));
  }
  return absl::OkStatus();
}

class Writer {
 public:
  explicit Writer(ShardWriter& shard) : shard_(shard) {}

  template <class T>
  absl::Status Put(const std::string& name, FileDType dtype, const std::vector<int64_t>& shape,
                   const std::vector<T>& values) {
    const auto count = static_cast<int64_t>(values.size());
    return shard_.Put({.name = name, .dtype = dtype, .shape = shape, .count = count},
                      {reinterpret_cast<const std::byte*>(values.data()), count * sizeof(T)});
  }

 private:
  ShardWriter& shard_;
};

absl::Status PutAll(ShardWriter& shard, const JobSpec& spec, WeightSource& source) {
  Writer writer(shard);
  for (const ParamInfo& param : source.outline().params) {
    std::vector<float> values(param.elements());
    absl::Status status = source.Read(param, absl::MakeSpan(values));
    if (status.ok()) {
      status =
          writer.Put(absl::StrCat(kMasterPrefix, param.name), FileDType::kF32, param.shape, values);
    }
    std::fill(values.begin(), values.end(), 0.0f);
    for (const char* prefix : {kFirstMomentPrefix, kSecondMomentPrefix}) {
      if (status.ok()) {
        status = writer.Put(absl::StrCat(prefix, param.name), FileDType::kF32, param.shape, values);
      }
    }
    if (!status.ok()) return status;
  }
  absl::Status status = writer.Put(kCounters, FileDType::kI64, {kCounterCount},
                                   std::vector<int64_t>(kCounterCount, 0));
  if (!status.ok()) return status;
  const int64_t window = spec.guards.spike_window;
  return writer.Put(kSpikeLosses, FileDType::kF64, {window}, std::vector<double>(window, 0.0));
}

}  // namespace

absl::Status WriteInitialCheckpoint(CheckpointStore& store, const JobSpec& spec,
                                    WeightSource& source, int64_t time_unix_nanos) {
  if (absl::Status status = CheckModels(spec, source); !status.ok()) return status;
  const absl::StatusOr<std::vector<CheckpointSummary>> there = store.List();
  if (!there.ok()) return there.status();
  if (!there->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(store.path(), " has ", there->size(),
                                                      " checkpoints already: weights begin a run"));
  }
  const int64_t attempt = store.attempt() + 1;
  absl::StatusOr<std::unique_ptr<ShardWriter>> writer = store.Begin(0, attempt, 0);
  if (!writer.ok()) return writer.status();
  if (absl::Status status = PutAll(**writer, spec, source); !status.ok()) return status;
  absl::StatusOr<ShardManifest> shard = (*writer)->Seal();
  if (!shard.ok()) return shard.status();
  const absl::StatusOr<Manifest> manifest =
      MakeManifest({.identity = store.identity(),
                    .step = 0,
                    .attempt = attempt,
                    .seed = spec.training.seed,
                    .formula_version = kFormulaVersion,
                    .world = 1,
                    .time_unix_nanos = time_unix_nanos,
                    .recipe_timeline = ToJson(MakeTimeline(spec)),
                    .spec = ToYaml(spec)},
                   {*std::move(shard)});
  if (!manifest.ok()) return manifest.status();
  return store.Commit(*manifest).status();
}

}  // namespace nibble
