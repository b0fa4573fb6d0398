// The specification of a job: model, initial weights, recipe and its changes, data, training,
// optimizer, guards, metrics, resources, output. It is read from YAML, where every field has a
// name, a type and a range; one table, job/job_fields.cc, describes the fields, and parsing, error
// messages, `nibble job show-defaults` and docs/reference/job-spec.md are generated from it.
//
// No I/O, no clock: specs are made from text. Thread-safety: values and pure functions.
#ifndef NIBBLE_JOB_JOB_SPEC_H_
#define NIBBLE_JOB_JOB_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/choices.h"
#include "model/model_spec.h"
#include "recipe/recipe.h"
#include "recipe/timeline.h"

namespace nibble {

// A planned change of the recipe.
struct PlannedChange {
  EffectiveAt at;  // never kNow
  std::vector<FieldSetting> set;
  std::vector<LayerRule> layers;
  std::string reason;
  friend bool operator==(const PlannedChange&, const PlannedChange&) = default;
};

struct TrainingSource {
  std::string path;
  int64_t weight = 1;
  int64_t token_width = 0;
  int64_t document_end = -1;
  friend bool operator==(const TrainingSource&, const TrainingSource&) = default;
};

struct ValidationSource {
  std::string name;  // the parser derives an unset one from the path
  std::string path;
  int64_t token_width = 0;
  int64_t document_end = -1;
  friend bool operator==(const ValidationSource&, const ValidationSource&) = default;
};

// A part of the run with its own weights, one per training source.
struct DataPhase {
  int64_t parts = 1;
  std::vector<int64_t> weights;
  friend bool operator==(const DataPhase&, const DataPhase&) = default;
};

struct DataSpec {
  std::vector<TrainingSource> train;
  std::vector<DataPhase> phases;  // empty: the sources' own weights for the whole run
  std::vector<ValidationSource> validation;
  int64_t sequence = 1024;
  JobTokenizer tokenizer = JobTokenizer::kData;
  std::string tokenizer_model;  // a path
  std::string tokenizer_label;  // the tokenizer's label, see docs/formats/tokenizers.md
  std::string text_field = "text";
  JobSplit split = JobSplit::kParagraphs;
  double validation_fraction = 0.01;
  bool reset_at_documents = true;
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

// The checkpoint with the initial weights; random weights if neither is set.
struct InitSpec {
  std::string job;    // of the cluster: its id or its unique name
  std::string path;   // of a store on disk, without a cluster
  int64_t step = -1;  // of the checkpoint; -1: the newest valid one
  friend bool operator==(const InitSpec&, const InitSpec&) = default;

  bool any() const { return !job.empty() || !path.empty(); }
};

struct TrainingSpec {
  int64_t steps = 0;
  int64_t batch = 32;
  int64_t micro_batch = 0;
  uint64_t seed = 1;
  int64_t repeat = 0;
  int64_t stop_at = 0;  // 0: steps
  JobPrecision precision = JobPrecision::kBf16;
  JobProducts products = JobProducts::kFastest;
  JobRecompute recompute = JobRecompute::kNone;
  int64_t validate_every = 100;
  int64_t validation_batches = 4;
  friend bool operator==(const TrainingSpec&, const TrainingSpec&) = default;
};

struct OptimizerSpec {
  double lr = 1e-3;
  double final_lr = 1e-5;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;
  LrSchedule schedule = LrSchedule::kWsd;
  int64_t warmup_steps = 100;
  double decay_fraction = 0.2;
  DecayShape decay_shape = DecayShape::kLinear;
  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};

struct GuardSpec {
  NonFinitePolicy non_finite = NonFinitePolicy::kSkip;
  int64_t max_skips = 10;
  SkipsPolicy after_skips = SkipsPolicy::kPause;
  SpikePolicy spike = SpikePolicy::kObserve;
  double spike_z = 6.0;
  int64_t spike_window = 64;
  SpikePolicy gradient_norm = SpikePolicy::kObserve;
  double gradient_norm_z = 200.0;
  OperandPolicy relative_error = OperandPolicy::kObserve;
  double relative_error_above = 0.5;
  OperandPolicy underflow = OperandPolicy::kObserve;
  double underflow_above = 0.85;
  OperandPolicy clipped = OperandPolicy::kObserve;
  double clipped_above = 0.3;
  std::string promote_layers;  // read by PromotedLayers()
  int64_t promote_steps = 200;
  int64_t rollback_margin = 16;
  double rollback_lr_scale = 1;
  int64_t max_rollbacks = 2;
  friend bool operator==(const GuardSpec&, const GuardSpec&) = default;
};

struct EarlyStopSpec {
  int64_t patience = 0;  // 0: never
  double min_delta = 0;
  friend bool operator==(const EarlyStopSpec&, const EarlyStopSpec&) = default;
};

struct MetricsSpec {
  int64_t precision_every = 100;
  int64_t log_every = 10;
  friend bool operator==(const MetricsSpec&, const MetricsSpec&) = default;
};

struct ResourceSpec {
  int64_t ranks = 1;
  // Elastic jobs: see AllowedRanks().
  int64_t min_ranks = 0;
  int64_t max_ranks = 0;
  std::vector<int64_t> allowed_ranks;
  int64_t threads = 0;
  int64_t memory_mib = 0;
  JobDevice device = JobDevice::kCpu;
  JobCollectives collectives = JobCollectives::kAuto;
  JobReduction reduction = JobReduction::kRankOrder;
  JobExchange exchange = JobExchange::kAuto;
  JobSharding sharding = JobSharding::kOptimizer;
  friend bool operator==(const ResourceSpec&, const ResourceSpec&) = default;
};

struct CheckpointSpec {
  int64_t every = 1000;
  bool at_end = true;
  int64_t keep_last = 2;
  int64_t keep_every = 0;
  friend bool operator==(const CheckpointSpec&, const CheckpointSpec&) = default;

  bool any() const { return every > 0 || at_end; }
};

// A name with a text; names are unique within their list.
struct NamedText {
  std::string name;
  std::string text;
  friend bool operator==(const NamedText&, const NamedText&) = default;
};

// Where and when a cluster runs the job; the trainer ignores it.
struct SchedulingSpec {
  std::string queue = "default";
  int64_t priority = 0;
  std::vector<NamedText> require, prefer;  // worker labels
  bool prefer_fp4 = false;
  friend bool operator==(const SchedulingSpec&, const SchedulingSpec&) = default;
};

// Restarts after failed attempts, on a cluster.
struct RestartSpec {
  int64_t max_without_progress = 3;
  double backoff = 1;        // seconds
  double max_backoff = 300;  // seconds
  friend bool operator==(const RestartSpec&, const RestartSpec&) = default;
};

// Where a cluster's coordinator posts events of the job.
struct NotifySpec {
  std::string url;  // see job/notify_url.h
  std::vector<NotifyEvent> on = {NotifyEvent::kPaused,  NotifyEvent::kCompleted,
                                 NotifyEvent::kFailed,  NotifyEvent::kCancelled,
                                 NotifyEvent::kTrouble, NotifyEvent::kAlert};
  friend bool operator==(const NotifySpec&, const NotifySpec&) = default;
};

struct OutputSpec {
  std::string directory;    // see OutputDirectory()
  std::string tensorboard;  // see TensorboardDirectory(); empty: no files
  friend bool operator==(const OutputSpec&, const OutputSpec&) = default;
};

struct JobSpec {
  std::string name;
  ModelSpec model;
  InitSpec init_from;
  Recipe recipe = {.preset = "nvfp4"};
  std::vector<PlannedChange> changes;
  DataSpec data;
  TrainingSpec training;
  OptimizerSpec optimizer;
  GuardSpec guards;
  EarlyStopSpec early_stop;
  MetricsSpec metrics;
  CheckpointSpec checkpoints;
  ResourceSpec resources;
  SchedulingSpec scheduling;
  RestartSpec restarts;
  std::vector<NotifySpec> notify;
  std::vector<NamedText> env;  // environment variables of the rank processes
  OutputSpec output;
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// Bounds on the text of a spec, which may come from an untrusted client.
inline constexpr size_t kMaxJobBytes = size_t{1} << 20;
inline constexpr int kMaxJobDepth = 16;
inline constexpr size_t kMaxJobNodes = 50'000;
inline constexpr int64_t kMaxAllowedWorlds = 64;
inline constexpr int64_t kMaxNamedTexts = 64;
inline constexpr int64_t kMaxNotifyTargets = 8;
inline constexpr int64_t kMaxGuardRollbacks = 7;  // in a row; the coordinator keeps 8 attempts

// Returns a valid spec. InvalidArgument with the problems of the text, at most ten, each with its
// line, its field's path, the value and what is allowed; OutOfRange for a text over kMaxJobBytes.
absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml);
// As above with `settings` applied (OverrideFields). Problems of fields that they set have no line,
// all others the line of `yaml`.
absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml, std::span<const std::string> settings);

// Writes every field, including defaults. ParseJobSpec(ToYaml(spec)) == spec for valid specs.
std::string ToYaml(const JobSpec& spec);

// A valid spec of defaults, with comments on the meaning and the allowed values of each field.
// Required fields have an example value.
std::string DefaultsYaml();

// Checks everything that ParseJobSpec checks beyond types: ranges, rules between fields, and the
// recipe and its changes against the model. InvalidArgument as ParseJobSpec, without lines.
absl::Status Validate(const JobSpec& spec);

// The recipe and its planned changes as revisions, ordered by step. `spec` must be valid.
Timeline MakeTimeline(const JobSpec& spec);
// The facts that times of changes are resolved with, before the first step. `spec` must be valid.
ScheduleFacts MakeScheduleFacts(const JobSpec& spec);

// The following functions need a valid spec.

// Whether a guard of operands, which finds layers, may roll a job back.
inline bool OperandsRollBack(const GuardSpec& guards) {
  const auto operand = [](OperandPolicy policy) { return policy == OperandPolicy::kRollBack; };
  return operand(guards.relative_error) || operand(guards.underflow) || operand(guards.clipped);
}
// Whether a guard of the updates, which judges loss, gradient norm and non-finite values, may.
inline bool UpdatesRollBack(const GuardSpec& guards) {
  const auto spike = [](SpikePolicy policy) { return policy == SpikePolicy::kRollBack; };
  return guards.non_finite == NonFinitePolicy::kRollBack ||
         guards.after_skips == SkipsPolicy::kRollBack || spike(guards.spike) ||
         spike(guards.gradient_norm);
}
inline bool RollsBack(const GuardSpec& guards) {
  return OperandsRollBack(guards) || UpdatesRollBack(guards);
}
// The layers that guards of the updates promote.
inline std::string PromotedLayers(const GuardSpec& guards) {
  return guards.promote_layers.empty() ? "*" : guards.promote_layers;
}
// Whether a rollback by a guard of the updates promotes them. These guards find no layer, so a
// rollback that lowers the learning rate changes the recipe only if the spec names layers.
inline bool UpdatesRollBackToBf16(const GuardSpec& guards) {
  return guards.rollback_lr_scale == 1 || !guards.promote_layers.empty();
}

// Tokens that one step trains on, over all ranks.
inline int64_t TokensPerStep(const JobSpec& spec) {
  return spec.training.batch * spec.data.sequence;
}
inline int64_t TotalTokens(const JobSpec& spec) {
  return spec.training.steps * TokensPerStep(spec);
}
// The first step that is not run: training.steps, or less with training.stop_at. Learning rate,
// phases of the data and fractions of the run depend on training.steps all the same.
inline int64_t EndStep(const JobSpec& spec) {
  return spec.training.stop_at == 0 ? spec.training.steps : spec.training.stop_at;
}
// The seed of what differs between repeats of a run, the order of samples and stochastic rounding:
// training.seed for repeat 0. Initial weights and held-out documents depend on training.seed alone.
uint64_t RepeatSeed(const TrainingSpec& training);
// Sequences of a step that each rank computes.
inline int64_t SequencesPerRank(const JobSpec& spec) {
  return spec.training.batch / spec.resources.ranks;
}
// Sequences per forward and backward pass of a rank.
inline int64_t MicroBatch(const JobSpec& spec) {
  return spec.training.micro_batch == 0 ? SequencesPerRank(spec) : spec.training.micro_batch;
}
// Numbers of ranks in [least, most], ascending, that split the batch evenly into whole
// micro-batches.
std::vector<int64_t> RanksThatShare(const TrainingSpec& training, int64_t least, int64_t most);
// Numbers of ranks that the job may run with, ascending: resources.allowed_ranks, those from
// min_ranks to max_ranks that split the batch evenly, or only resources.ranks.
std::vector<int64_t> AllowedRanks(const JobSpec& spec);
// "runs/NAME" if the spec sets no directory.
std::string OutputDirectory(const JobSpec& spec);
// Where a run whose output directory is `output` writes TensorBoard's files; empty: nowhere.
std::string TensorboardDirectory(const JobSpec& spec, const std::string& output);

}  // namespace nibble

#endif  // NIBBLE_JOB_JOB_SPEC_H_
