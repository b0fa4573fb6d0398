// The events of a training run. Each event describes its fields once; the JSON lines (event_log.h)
// and docs/reference/events.md are generated from these descriptions.
//
// Figures are messages whose options describe them (figure_event.h): v1::StepSample,
// link::v1::ProductPath and link::v1::PrecisionSample. The other events are structs; Describe()
// calls its visitor with each field's name, member, unit and meaning, in the order of the JSON.
// Steps count from 0.
//
// Thread-safety: values.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_EVENTS_H_
#define NIBBLE_WORKER_TRAINER_REPORT_EVENTS_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "proto/nibble/link/v1/link.pb.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// Incremented when a field changes its meaning or is removed, not for new fields or events.
inline constexpr int kEventSchema = 1;

struct StartEvent {
  static constexpr char kName[] = "start";
  static constexpr char kMeaning[] = "The run begins, or resumes from a checkpoint.";
  std::string job;
  std::string version;
  std::string model;
  int64_t parameters = 0;
  std::string recipe;
  std::string precision;
  int64_t first_step = 0;
  int64_t steps = 0;
  int64_t tokens_per_step = 0;
  int64_t sequence = 0;
  int64_t batch = 0;
  int64_t micro_batch = 0;
  int64_t ranks = 0;
  int64_t threads = 0;
  std::string device;
  std::string collectives;
  uint64_t seed = 0;
  std::string spec;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = StartEvent;
    visit("job", &E::job, "", "its name");
    visit("version", &E::version, "", "of the trainer");
    visit("model", &E::model, "", "its name");
    visit("parameters", &E::parameters, "", "of the model");
    visit("recipe", &E::recipe, "", "preset of the first step");
    visit("precision", &E::precision, "", "of everything that is not quantised");
    visit("first_step", &E::first_step, "", "0, or the step of the checkpoint");
    visit("steps", &E::steps, "", "of the whole run");
    visit("tokens_per_step", &E::tokens_per_step, "tokens", "over all ranks");
    visit("sequence", &E::sequence, "tokens", "length of a sample");
    visit("batch", &E::batch, "sequences", "of a step, over all ranks");
    visit("micro_batch", &E::micro_batch, "sequences", "that a rank computes at once");
    visit("ranks", &E::ranks, "", "processes that train together");
    visit("threads", &E::threads, "", "of each rank");
    visit("device", &E::device, "", "where the model is computed");
    visit("collectives", &E::collectives, "",
          "how rank 0 exchanges tensors with the others, and the order of NCCL's sums");
    visit("seed", &E::seed, "", "of the run");
    visit("spec", &E::spec, "", "the whole job spec, as YAML");
  }
};

struct MemoryEvent {
  static constexpr char kName[] = "memory";
  static constexpr char kMeaning[] =
      "What the run has planned to take of its device's memory, on rank 0.";
  int64_t step = 0;
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t working_weights = 0;
  int64_t activations = 0;
  int64_t scratch = 0;
  int64_t total = 0;
  int64_t capacity = 0;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = MemoryEvent;
    visit("step", &E::step, "", "the first that is run with it");
    visit("weights", &E::weights, "bytes", "FP32");
    visit("gradients", &E::gradients, "bytes", "FP32");
    visit("moments", &E::moments, "bytes", "of the optimizer");
    visit("working_weights", &E::working_weights, "bytes", "in the formats of the recipe");
    visit("activations", &E::activations, "bytes", "kept for the backward pass or between blocks");
    visit("scratch", &E::scratch, "bytes", "of one operation or block at a time");
    visit("total", &E::total, "bytes", "of these");
    visit("capacity", &E::capacity, "bytes", "that the device has for the run; 0: no limit");
  }
};

struct ValidationEvent {
  static constexpr char kName[] = "validation";
  static constexpr char kMeaning[] = "A validation set was evaluated.";
  int64_t step = 0;
  std::string set;
  double loss = 0;
  int64_t batches = 0;
  int64_t revision = 0;
  double seconds = 0;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = ValidationEvent;
    visit("step", &E::step, "", "steps done before it");
    visit("set", &E::set, "", "its name");
    visit("loss", &E::loss, "nats per token", "mean over the tokens that were evaluated");
    visit("batches", &E::batches, "", "that were evaluated");
    visit("revision", &E::revision, "", "of the recipe it was computed under");
    visit("seconds", &E::seconds, "s", "it took");
  }
};

struct RevisionEvent {
  static constexpr char kName[] = "revision";
  static constexpr char kMeaning[] = "A revision of the recipe takes effect.";
  int64_t step = 0;
  int64_t revision = 0;
  std::string author;
  std::string reason;
  std::string recipe;
  std::vector<std::string> changes;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = RevisionEvent;
    visit("step", &E::step, "", "the first under it");
    visit("revision", &E::revision, "", "its number");
    visit("author", &E::author, "", "who requested it");
    visit("reason", &E::reason, "", "why");
    visit("recipe", &E::recipe, "", "the whole recipe, as JSON");
    visit("changes", &E::changes, "", "what differs from the revision before, a text each");
  }
};

struct GuardEvent {
  static constexpr char kName[] = "guard";
  static constexpr char kMeaning[] = "A guard has found something wrong with a step.";
  int64_t step = 0;
  std::string guard;
  std::string action;
  double loss = 0;
  double gradient_norm = 0;
  double z = 0;
  std::string detail;
  std::vector<std::string> operands;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = GuardEvent;
    visit("step", &E::step, "", "its number");
    visit("guard", &E::guard, "", "non-finite or spike");
    visit("action", &E::action, "",
          "observed, skipped (no update), stopped, or the value of guards.after_skips");
    visit("loss", &E::loss, "nats per token", "of the step");
    visit("gradient_norm", &E::gradient_norm, "", "before clipping");
    visit("z", &E::z, "standard deviations", "above the mean of the last losses, of a spike");
    visit("detail", &E::detail, "", "for people");
    visit("operands", &E::operands, "", "quantised operands with NaN or infinities");
  }
};

struct ResumeEvent {
  static constexpr char kName[] = "resume";
  static constexpr char kMeaning[] = "The run resumes from a checkpoint.";
  int64_t step = 0;
  int64_t checkpoint_attempt = 0;
  int64_t checkpoint_ranks = 0;
  int64_t attempt = 0;
  int64_t revision = 0;
  double seconds = 0;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = ResumeEvent;
    visit("step", &E::step, "", "the first that is run");
    visit("checkpoint_attempt", &E::checkpoint_attempt, "", "launch that made the checkpoint");
    visit("checkpoint_ranks", &E::checkpoint_ranks, "", "that made it");
    visit("attempt", &E::attempt, "", "number of this launch");
    visit("revision", &E::revision, "", "of the recipe in effect");
    visit("seconds", &E::seconds, "s", "that loading took");
  }
};

struct CheckpointEvent {
  static constexpr char kName[] = "checkpoint";
  static constexpr char kMeaning[] = "A checkpoint is stored, or could not be.";
  int64_t step = 0;
  bool stored = false;
  int64_t bytes = 0;
  int64_t deleted = 0;
  double stall_seconds = 0;
  double write_seconds = 0;
  bool direct = true;
  std::string problem;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = CheckpointEvent;
    visit("step", &E::step, "", "the first that is run from it");
    visit("stored", &E::stored, "", "false: training continues without it, older ones stay");
    visit("bytes", &E::bytes, "bytes", "of rank 0's part of the state");
    visit("deleted", &E::deleted, "", "older checkpoints that were deleted for it");
    visit("stall_seconds", &E::stall_seconds, "s", "that rank 0's training waited");
    visit("write_seconds", &E::write_seconds, "s", "from then on until it was stored");
    visit("direct", &E::direct, "", "written past the page cache; false is slower");
    visit("problem", &E::problem, "", "why it was not stored");
  }
};

struct NoticeEvent {
  static constexpr char kName[] = "notice";
  static constexpr char kMeaning[] =
      "Something an operator should know, such as a slower path that was taken.";
  int64_t step = 0;
  std::string text;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = NoticeEvent;
    visit("step", &E::step, "", "the next one when it was noticed");
    visit("text", &E::text, "", "for people");
  }
};

struct LostEvent {
  static constexpr char kName[] = "lost";
  static constexpr char kMeaning[] =
      "Events that belong here could not be written, and exceeded the memory for them.";
  int64_t events = 0;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = LostEvent;
    visit("events", &E::events, "", "the number missing");
  }
};

struct FinishEvent {
  static constexpr char kName[] = "finish";
  static constexpr char kMeaning[] = "The run has ended without an error.";
  int64_t steps = 0;
  int64_t tokens = 0;
  double loss = 0;
  int64_t skipped_steps = 0;
  int64_t failed_checkpoints = 0;
  int64_t last_checkpoint = -1;
  int64_t memory_peak = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  std::string reason;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = FinishEvent;
    visit("steps", &E::steps, "", "done, those before a checkpoint included");
    visit("tokens", &E::tokens, "tokens", "trained on");
    visit("loss", &E::loss, "nats per token", "of the last step");
    visit("skipped_steps", &E::skipped_steps, "", "whose update a guard skipped");
    visit("failed_checkpoints", &E::failed_checkpoints, "", "that could not be stored");
    visit("last_checkpoint", &E::last_checkpoint, "", "step of the newest one stored, or -1");
    visit("memory_peak", &E::memory_peak, "bytes",
          "that tensors ever took of the device's memory, on rank 0; 0: not known");
    visit("seconds", &E::seconds, "s", "since the start event");
    visit("tokens_per_second", &E::tokens_per_second, "tokens/s", "since the start event");
    visit("reason", &E::reason, "", "completed, or why it stopped early");
  }
};

struct ErrorEvent {
  static constexpr char kName[] = "error";
  static constexpr char kMeaning[] = "The run ends with an error.";
  int64_t step = 0;
  std::string code;
  std::string message;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = ErrorEvent;
    visit("step", &E::step, "", "at which it happened");
    visit("code", &E::code, "", "such as RESOURCE_EXHAUSTED");
    visit("message", &E::message, "", "for people");
  }
};

// All of them, in the order of the reference.
using AllEvents =
    std::tuple<StartEvent, MemoryEvent, v1::StepSample, ValidationEvent, RevisionEvent,
               link::v1::ProductPath, link::v1::PrecisionSample, GuardEvent, ResumeEvent,
               CheckpointEvent, NoticeEvent, LostEvent, FinishEvent, ErrorEvent>;

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENTS_H_
