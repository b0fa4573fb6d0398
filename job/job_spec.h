// What a job says: model, the weights it begins with, recipe and its changes, data, training,
// optimizer, guards, metrics, resources, output. Read from YAML, where every field has a name, a
// type and a range; the fields are documented in one table, job/job_fields.cc, from which parsing,
// error messages, `nibble job show-defaults` and docs/reference/job-spec.md are made.
//
// No I/O, no clock: a spec is text in, a value out. Thread-safety: values and pure functions.
#ifndef NIBBLE_JOB_JOB_SPEC_H_
#define NIBBLE_JOB_JOB_SPEC_H_

#include <cstddef>
#include <cstdint>
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

// A change of the recipe that is planned from the start.
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
  std::string name;  // read without one, it is made of the path
  std::string path;
  int64_t token_width = 0;
  int64_t document_end = -1;
  friend bool operator==(const ValidationSource&, const ValidationSource&) = default;
};

// A stretch of the run with weights of its own, in the order of the training sources.
struct DataPhase {
  int64_t parts = 1;
  std::vector<int64_t> weights;
  friend bool operator==(const DataPhase&, const DataPhase&) = default;
};

struct DataSpec {
  std::vector<TrainingSource> train;
  std::vector<DataPhase> phases;  // empty: the sources' own weights all along
  std::vector<ValidationSource> validation;
  int64_t sequence = 1024;
  JobTokenizer tokenizer = JobTokenizer::kData;
  std::string tokenizer_model;  // a path
  std::string tokenizer_label;  // of the tokens, as docs/formats/tokenizers.md has it
  std::string text_field = "text";
  JobSplit split = JobSplit::kParagraphs;
  double validation_fraction = 0.01;
  bool reset_at_documents = true;
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

// Whose weights the run begins with; without any, they are random.
struct InitSpec {
  std::string job;    // of the cluster: id, or a name that only one has
  std::string path;   // of a store on disk, without a cluster
  int64_t step = -1;  // of the checkpoint; -1: the newest good one
  friend bool operator==(const InitSpec&, const InitSpec&) = default;

  bool any() const { return !job.empty() || !path.empty(); }
};

struct TrainingSpec {
  int64_t steps = 0;
  int64_t batch = 32;
  int64_t micro_batch = 0;
  uint64_t seed = 1;
  JobPrecision precision = JobPrecision::kBf16;
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

// A name and the text that belongs to it; names are unique within their list.
struct NamedText {
  std::string name;
  std::string text;
  friend bool operator==(const NamedText&, const NamedText&) = default;
};

// Where and when a cluster runs the job; the trainer does not look at it.
struct SchedulingSpec {
  std::string queue = "default";
  int64_t priority = 0;
  std::vector<NamedText> require, prefer;  // labels of workers
  bool prefer_fp4 = false;
  friend bool operator==(const SchedulingSpec&, const SchedulingSpec&) = default;
};

// When a cluster follows a failed attempt by another.
struct RestartSpec {
  int64_t max_without_progress = 3;
  double backoff = 1;        // seconds
  double max_backoff = 300;  // seconds
  friend bool operator==(const RestartSpec&, const RestartSpec&) = default;
};

// Where a cluster's coordinator posts events of the job.
struct NotifySpec {
  std::string url;  // see job/notify_url.h
  std::vector<NotifyEvent> on = {NotifyEvent::kPaused, NotifyEvent::kCompleted,
                                 NotifyEvent::kFailed, NotifyEvent::kCancelled,
                                 NotifyEvent::kTrouble};
  friend bool operator==(const NotifySpec&, const NotifySpec&) = default;
};

struct OutputSpec {
  std::string directory;  // see OutputDirectory()
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
  std::vector<NamedText> env;  // of the ranks' processes
  OutputSpec output;
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// Bounds on the text of a spec, which may come from anyone.
inline constexpr size_t kMaxJobBytes = size_t{1} << 20;
inline constexpr int kMaxJobDepth = 16;
inline constexpr size_t kMaxJobNodes = 50'000;
inline constexpr int64_t kMaxAllowedWorlds = 64;
inline constexpr int64_t kMaxNamedTexts = 64;
inline constexpr int64_t kMaxNotifyTargets = 8;

// A valid spec. InvalidArgument with every problem of the text, ten at most, each with its line,
// its field's path, the value and what is allowed; OutOfRange for a text over kMaxJobBytes.
absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml);

// Every field, whether at its default or not. ParseJobSpec(ToYaml(spec)) == spec of a valid spec.
std::string ToYaml(const JobSpec& spec);

// A valid spec of defaults; comments say what each field means and allows. Fields that have no
// default hold an example.
std::string DefaultsYaml();

// All that ParseJobSpec checks beyond types: ranges, what one field asks of another, and the recipe
// and its changes against the model. InvalidArgument as ParseJobSpec, without lines.
absl::Status Validate(const JobSpec& spec);

// The recipe and its planned changes as revisions, in the order of their steps. `spec` is valid.
Timeline MakeTimeline(const JobSpec& spec);
// Of the changes' times, before the first step. `spec` is valid.
ScheduleFacts MakeScheduleFacts(const JobSpec& spec);

// The rest is of valid specs.

// Tokens that one step trains on, over all ranks.
inline int64_t TokensPerStep(const JobSpec& spec) {
  return spec.training.batch * spec.data.sequence;
}
inline int64_t TotalTokens(const JobSpec& spec) {
  return spec.training.steps * TokensPerStep(spec);
}
// Sequences of a step that fall to one rank.
inline int64_t SequencesPerRank(const JobSpec& spec) {
  return spec.training.batch / spec.resources.ranks;
}
// Sequences that a rank computes at once.
inline int64_t MicroBatch(const JobSpec& spec) {
  return spec.training.micro_batch == 0 ? SequencesPerRank(spec) : spec.training.micro_batch;
}
// Numbers of ranks, in [least, most] and ascending, that share a batch evenly in whole
// micro-batches.
std::vector<int64_t> RanksThatShare(const TrainingSpec& training, int64_t least, int64_t most);
// Numbers of ranks that the job may run with, ascending: resources.allowed_ranks, those from
// min_ranks to max_ranks that share the batch, or resources.ranks alone.
std::vector<int64_t> AllowedRanks(const JobSpec& spec);
// "runs/NAME" where the spec names none.
std::string OutputDirectory(const JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_JOB_JOB_SPEC_H_
