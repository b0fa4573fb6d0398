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
  std::string host;
  std::string processor;
  uint64_t seed = 0;
  std::string spec;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = StartEvent;
    visit("job", &E::job, "", "name of the job");
    visit("version", &E::version, "", "version of the trainer");
    visit("model", &E::model, "", "name of the model");
    visit("parameters", &E::parameters, "", "number of parameters of the model");
    visit("recipe", &E::recipe, "", "recipe preset of the first step");
    visit("precision", &E::precision, "", "format of everything that is not quantised");
    visit("first_step", &E::first_step, "", "0, or the step of the checkpoint");
    visit("steps", &E::steps, "", "steps of the whole run");
    visit("tokens_per_step", &E::tokens_per_step, "tokens", "tokens per step, over all ranks");
    visit("sequence", &E::sequence, "tokens", "length of a sample");
    visit("batch", &E::batch, "sequences", "sequences per step, over all ranks");
    visit("micro_batch", &E::micro_batch, "sequences", "sequences that a rank computes at once");
    visit("ranks", &E::ranks, "", "number of processes that train together");
    visit("threads", &E::threads, "", "threads of each rank");
    visit("device", &E::device, "", "device that computes the model");
    visit("collectives", &E::collectives, "",
          "how rank 0 exchanges tensors with the others, and the order of NCCL's sums");
    visit("host", &E::host, "", "name of the node of rank 0");
    visit("processor", &E::processor, "", "processor of that node, and its threads for this rank");
    visit("seed", &E::seed, "", "seed of the run");
    visit("spec", &E::spec, "", "the whole job spec, as YAML");
  }
};

struct MemoryEvent {
  static constexpr char kName[] = "memory";
  static constexpr char kMeaning[] = "The plan of the run's device memory, on rank 0.";
  int64_t step = 0;
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t working_weights = 0;
  int64_t activations = 0;
  int64_t scratch = 0;
  int64_t operations = 0;
  int64_t fixed = 0;
  int64_t total = 0;
  int64_t capacity = 0;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = MemoryEvent;
    visit("step", &E::step, "", "first step under this plan");
    visit("weights", &E::weights, "bytes", "FP32 weights");
    visit("gradients", &E::gradients, "bytes", "FP32 gradients");
    visit("moments", &E::moments, "bytes", "moments of the optimizer");
    visit("working_weights", &E::working_weights, "bytes", "weights in the formats of the recipe");
    visit("activations", &E::activations, "bytes",
          "activations kept for the backward pass or between blocks");
    visit("scratch", &E::scratch, "bytes", "scratch of one operation or block at a time");
    visit("operations", &E::operations, "bytes", "scratch that operations keep from step to step");
    visit("fixed", &E::fixed, "bytes", "workspaces of the device's libraries, and batches");
    visit("total", &E::total, "bytes", "sum of the above");
    visit("capacity", &E::capacity, "bytes", "memory that the device has for the run; 0: no limit");
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
    visit("step", &E::step, "", "number of steps before the validation");
    visit("set", &E::set, "", "name of the validation set");
    visit("loss", &E::loss, "nats per token", "mean loss over the evaluated tokens");
    visit("batches", &E::batches, "", "number of evaluated batches");
    visit("revision", &E::revision, "", "recipe revision of the evaluation");
    visit("seconds", &E::seconds, "s", "duration of the evaluation");
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
    visit("step", &E::step, "", "first step under the revision");
    visit("revision", &E::revision, "", "number of the revision");
    visit("author", &E::author, "", "who requested it");
    visit("reason", &E::reason, "", "reason given with the request");
    visit("recipe", &E::recipe, "", "the whole recipe, as JSON");
    visit("changes", &E::changes, "", "differences from the previous revision, one text each");
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
    visit("step", &E::step, "", "number of the step");
    visit("guard", &E::guard, "",
          "non-finite, spike (of the loss), gradient-norm, relative-error, underflow or clipped");
    visit("action", &E::action, "",
          "observed, skipped (no update), promoted, roll_back, stopped, or the value of "
          "guards.after_skips");
    visit("loss", &E::loss, "nats per token", "loss of the step");
    visit("gradient_norm", &E::gradient_norm, "", "norm before clipping");
    visit("z", &E::z, "standard deviations",
          "for a spike: distance above the mean of the last losses or norms");
    visit("detail", &E::detail, "", "details, for people");
    visit("operands", &E::operands, "",
          "quantised operands with NaN or infinities or above a bound, at most three");
  }
};

struct PromotionEvent {
  static constexpr char kName[] = "promotion";
  static constexpr char kMeaning[] =
      "The layers that guards keep in BF16 change: promotions begin or end.";
  int64_t step = 0;
  int64_t revision = 0;
  std::vector<std::string> layers;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = PromotionEvent;
    visit("step", &E::step, "", "first step with these layers in BF16");
    visit("revision", &E::revision, "", "recipe revision under the promotions");
    visit("layers", &E::layers, "",
          "each selector with the first step after its promotion and the guard; empty: none");
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
    visit("step", &E::step, "", "first step that is run");
    visit("checkpoint_attempt", &E::checkpoint_attempt, "", "attempt that wrote the checkpoint");
    visit("checkpoint_ranks", &E::checkpoint_ranks, "",
          "number of ranks that wrote the checkpoint");
    visit("attempt", &E::attempt, "", "number of this attempt");
    visit("revision", &E::revision, "", "recipe revision in effect");
    visit("seconds", &E::seconds, "s", "duration of loading");
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
    visit("step", &E::step, "", "first step after the checkpoint");
    visit("stored", &E::stored, "", "false: training continues without it, older checkpoints stay");
    visit("bytes", &E::bytes, "bytes", "size of rank 0's part of the state");
    visit("deleted", &E::deleted, "", "number of older checkpoints that retention deleted");
    visit("stall_seconds", &E::stall_seconds, "s", "time that training on rank 0 waited");
    visit("write_seconds", &E::write_seconds, "s", "time from then until it was stored");
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
    visit("step", &E::step, "", "next step when it was noticed");
    visit("text", &E::text, "", "the notice, for people");
  }
};

struct LostEvent {
  static constexpr char kName[] = "lost";
  static constexpr char kMeaning[] =
      "Events are missing here: they could not be written, and the memory for them ran out.";
  int64_t events = 0;

  template <class Visitor>
  static void Describe(Visitor&& visit) {
    using E = LostEvent;
    visit("events", &E::events, "", "number of missing events");
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
    visit("steps", &E::steps, "", "number of steps done, including those before a checkpoint");
    visit("tokens", &E::tokens, "tokens", "tokens trained on");
    visit("loss", &E::loss, "nats per token", "loss of the last step");
    visit("skipped_steps", &E::skipped_steps, "", "number of steps whose update a guard skipped");
    visit("failed_checkpoints", &E::failed_checkpoints, "",
          "number of checkpoints that could not be stored");
    visit("last_checkpoint", &E::last_checkpoint, "",
          "step of the newest stored checkpoint, or -1");
    visit("memory_peak", &E::memory_peak, "bytes",
          "most device memory that tensors ever took, on rank 0; 0: unknown");
    visit("seconds", &E::seconds, "s", "time since the start event");
    visit("tokens_per_second", &E::tokens_per_second, "tokens/s", "rate since the start event");
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
    visit("step", &E::step, "", "step at which it happened");
    visit("code", &E::code, "", "status code, such as RESOURCE_EXHAUSTED");
    visit("message", &E::message, "", "error message, for people");
  }
};

// All of them, in the order of the reference.
using AllEvents =
    std::tuple<StartEvent, MemoryEvent, v1::StepSample, ValidationEvent, RevisionEvent,
               link::v1::ProductPath, link::v1::PrecisionSample, GuardEvent, PromotionEvent,
               ResumeEvent, CheckpointEvent, NoticeEvent, LostEvent, FinishEvent, ErrorEvent>;

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_EVENTS_H_
