#include "client/remote/run_watch.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/remote/event_lines.h"
#include "client/remote/job_text.h"
#include "client/remote/job_wait.h"
#include "client/remote/watch_display.h"
#include "client/shell/output.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "job/job_spec.h"
#include "worker/trainer/report/events.h"

namespace nibble {
namespace {

constexpr int kWorstOperands = 3;

std::string TextOfField(const RunEvent& event, const std::string& field) {
  const auto found = event.fields.find(field);
  return found != event.fields.end() && found->is_string() ? found->get<std::string>() : "";
}

// 0 if the event has no such whole number.
int64_t WholeOfField(const RunEvent& event, const std::string& field) {
  const auto found = event.fields.find(field);
  return found != event.fields.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// 0 if the event has no such number.
double NumberOfField(const RunEvent& event, const std::string& field) {
  return HasNumber(event, field) ? NumberOf(event, field) : 0;
}

v1::StepSample SampleOf(const RunEvent& event) {
  v1::StepSample sample;
  ReadFigures(event, sample);
  return sample;
}

}  // namespace

RunState::RunState(const std::string& name, WatchState& state) : state_(state) {
  job_.set_id(name);
  job_.set_name(name);
  job_.set_state(v1::JOB_STATE_STARTING);
  job_.set_checkpoint_step(-1);
  state_.SetJob(job_);
}

v1::JobEvent RunState::EventOf(const RunEvent& event, v1::JobEventKind kind,
                               const std::string& text) {
  v1::JobEvent one;
  one.set_job(job_.id());
  one.set_number(++events_);
  one.set_time_unix_ms(absl::ToUnixMillis(event.time));
  one.set_kind(kind);
  one.set_text(text);
  one.set_attempt(job_.attempts());
  one.set_step(event.step);
  return one;
}

std::optional<v1::JobEvent> RunState::Start(const RunEvent& event) {
  const int64_t first = WholeOfField(event, "first_step");
  v1::JobShape& shape = *job_.mutable_shape();
  shape.set_model(TextOfField(event, "model"));
  shape.set_parameters(WholeOfField(event, "parameters"));
  shape.set_ranks(static_cast<int32_t>(WholeOfField(event, "ranks")));
  shape.set_steps(WholeOfField(event, "steps"));
  shape.set_decay_first_step(shape.steps());
  shape.set_tokens_per_step(WholeOfField(event, "tokens_per_step"));
  if (!outline_) {
    const absl::StatusOr<JobSpec> spec = ParseJobSpec(TextOfField(event, "spec"));
    if (spec.ok()) {
      absl::StatusOr<Outline> outline = MakeOutline(spec->model);
      if (outline.ok()) outline_ = *std::move(outline);
    }
  }
  const int64_t now = absl::ToUnixMillis(event.time);
  job_.set_attempts(job_.attempts() + 1);
  if (job_.attempts() == 1) job_.set_submitted_unix_ms(now);
  v1::Attempt& attempt = *job_.mutable_attempt();
  attempt.set_number(job_.attempts());
  attempt.set_world(shape.ranks());
  attempt.set_launched_unix_ms(now);
  attempt.set_running_unix_ms(now);
  job_.set_state(v1::JOB_STATE_RUNNING);
  job_.set_state_since_unix_ms(now);
  job_.set_next_step(first);
  job_.clear_finished_unix_ms();
  job_.clear_state_reason();
  v1::JobEvent started = EventOf(event, v1::JOB_EVENT_KIND_ATTEMPT,
                                 first == 0 ? "started" : absl::StrCat("resumed at step ", first));
  started.set_step(first);
  return started;
}

std::optional<v1::JobEvent> RunState::Revise(const RunEvent& event) {
  v1::RecipeRevision revision;
  revision.set_number(WholeOfField(event, "revision"));
  revision.set_first_step(event.step);
  revision.set_author(TextOfField(event, "author"));
  revision.set_reason(TextOfField(event, "reason"));
  revision.set_time_unix_ms(absl::ToUnixMillis(event.time));
  revision.set_confirmed(true);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  // The fields of a recipe's JSON are those of the message.
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      TextOfField(event, "recipe"), revision.mutable_recipe(), options);
  if (!parsed.ok()) revision.clear_recipe();
  const bool repeated = !revisions_.empty() && revisions_.back().number() == revision.number();
  if (outline_) bits_[revision.number()] = BitsOf(revision.recipe(), *outline_);
  job_.set_latest_revision(revision.number());
  job_.set_revision_in_force(revision.number());
  if (!repeated) revisions_.push_back(revision);
  state_.SetRevisions(revisions_, bits_);
  // The first one is no change; a run that resumes repeats the last one.
  if (repeated || revisions_.size() == 1) return std::nullopt;
  v1::JobEvent changed =
      EventOf(event, v1::JOB_EVENT_KIND_RECIPE,
              absl::StrCat("recipe revision ", revision.number(), " is in effect",
                           revision.reason().empty() ? "" : ": ", revision.reason()));
  changed.set_author(revision.author());
  changed.set_revision(revision.number());
  return changed;
}

void RunState::Summarise(const RunEvent& event) {
  if (precision_.operands() == 0 || precision_.step() != event.step) {
    precision_.Clear();
    precision_.set_step(event.step);
  }
  link::v1::PrecisionSample figures;
  ReadFigures(event, figures);
  v1::OperandPrecision operand;
  operand.set_layer(figures.layer());
  operand.set_operand(figures.operand());
  operand.set_format(figures.format());
  operand.set_relative_error(figures.relative_error());
  operand.set_underflow(figures.underflow());
  operand.set_clipped(figures.clipped());
  operand.set_non_finite(figures.non_finite());
  const int operands = precision_.operands() + 1;
  precision_.set_operands(operands);
  precision_.set_mean_relative_error(precision_.mean_relative_error() +
                                     (operand.relative_error() - precision_.mean_relative_error()) /
                                         operands);
  precision_.set_most_underflow(std::max(precision_.most_underflow(), operand.underflow()));
  precision_.set_most_clipped(std::max(precision_.most_clipped(), operand.clipped()));
  precision_.set_non_finite(precision_.non_finite() + figures.non_finite());
  auto& worst = *precision_.mutable_worst();
  *worst.Add() = std::move(operand);
  std::sort(worst.begin(), worst.end(),
            [](const v1::OperandPrecision& a, const v1::OperandPrecision& b) {
              return a.relative_error() > b.relative_error();
            });
  if (worst.size() > kWorstOperands) worst.RemoveLast();
  state_.SetPrecision(precision_);
}

void RunState::End(const RunEvent& event, v1::JobState state, const std::string& reason) {
  job_.set_state(state);
  job_.set_state_reason(reason);
  job_.set_state_since_unix_ms(absl::ToUnixMillis(event.time));
  job_.set_finished_unix_ms(absl::ToUnixMillis(event.time));
  job_.set_next_step(state_.next_step());
}

RunState::Shown RunState::Add(const RunEvent& event) {
  Shown shown;
  if (event.kind == "step") {
    state_.AddSample(SampleOf(event));
    job_.set_next_step(event.step + 1);
    shown.sample = true;
  } else if (event.kind == "precision") {
    Summarise(event);
  } else if (event.kind == StartEvent::kName) {
    shown.event = Start(event);
  } else if (event.kind == RevisionEvent::kName) {
    shown.event = Revise(event);
  } else if (event.kind == CheckpointEvent::kName) {
    const bool stored = NumberOfField(event, "stored") != 0;
    if (stored) job_.set_checkpoint_step(event.step);
    shown.event =
        EventOf(event, v1::JOB_EVENT_KIND_CHECKPOINT,
                stored ? "committed" : absl::StrCat("not stored: ", TextOfField(event, "problem")));
  } else if (event.kind == GuardEvent::kName) {
    // Operands that a guard only observes are many, as in the trainer's own output.
    const auto operands = event.fields.find("operands");
    if (TextOfField(event, "action") == "observed" && operands != event.fields.end() &&
        !operands->empty()) {
      return shown;
    }
    const std::string text =
        absl::StrCat(TextOfField(event, "guard"), " guard ", TextOfField(event, "action"), ": ",
                     TextOfField(event, "detail"));
    shown.event = EventOf(event, v1::JOB_EVENT_KIND_GUARD, text);
  } else if (event.kind == NoticeEvent::kName) {
    shown.event = EventOf(event, v1::JOB_EVENT_KIND_TROUBLE, TextOfField(event, "text"));
  } else if (event.kind == FinishEvent::kName) {
    const std::string reason = TextOfField(event, "reason");
    const bool completed = reason == "completed";
    End(event, completed ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_CANCELLED,
        completed ? "" : reason);
  } else if (event.kind == ErrorEvent::kName) {
    End(event, v1::JOB_STATE_FAILED,
        absl::StrCat(TextOfField(event, "code"), ": ", TextOfField(event, "message")));
  }
  if (shown.event.has_value()) state_.AddEvent(*shown.event);
  state_.SetJob(job_);
  return shown;
}

absl::StatusOr<Reply> WatchRun(Session& session, const std::string& directory,
                               const std::string& name) {
  WatchState state;
  RunState run(name, state);
  WatchDisplay display(session, state);
  bool caught_up = false;  // everything that the log had at first is read
  FileEventLines lines(directory);
  const absl::Status read =
      lines.Read(true, {.take = [&](std::string_view line) -> absl::Status {
                          NIBBLE_ASSIGN_OR_RETURN(const RunEvent event, ParseRunEvent(line));
                          const RunState::Shown shown = run.Add(event);
                          display.Invalidate();
                          if (!caught_up) return absl::OkStatus();
                          if (shown.event.has_value()) display.Event(*shown.event);
                          if (shown.sample) display.Sample();
                          return absl::OkStatus();
                        },
                        .pause = [&]() -> absl::Status {
                          if (!caught_up) {
                            caught_up = true;
                            display.Begin();
                            if (!state.recent().empty()) display.Sample();
                          }
                          if (!display.HandleKeys()) return absl::CancelledError("left");
                          display.Draw();
                          return absl::OkStatus();
                        }});
  if (absl::IsCancelled(read)) {
    display.Leave();
    session.Say(absl::StrCat("detached; the run continues. Run 'nibble job watch ", directory,
                             "' to follow it again"));
    return Reply{.exit_code = kExitNotFinished};
  }
  NIBBLE_RETURN_IF_ERROR(read);
  display.Finish();
  return Reply{.exit_code = ExitCodeOfJob(state.job().state())};
}

}  // namespace nibble
