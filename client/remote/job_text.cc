#include "client/remote/job_text.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/remote/enum_words.h"
#include "client/remote/upload_text.h"
#include "client/shell/output.h"
#include "common/counted.h"
#include "common/text/table.h"
#include "common/text/text.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

std::string LabelsText(const google::protobuf::RepeatedPtrField<v1::Label>& labels) {
  return absl::StrJoin(labels, ", ", [](std::string* out, const v1::Label& label) {
    absl::StrAppend(out, label.key(), "=", label.value());
  });
}

std::string SchedulingText(const v1::JobScheduling& scheduling) {
  std::string text =
      absl::StrCat("queue ", scheduling.queue(), ", priority ", scheduling.priority(), ", ranks ",
                   absl::StrJoin(scheduling.allowed_ranks(), " or "));
  if (!scheduling.required_labels().empty()) {
    absl::StrAppend(&text, "\nrequires ", LabelsText(scheduling.required_labels()));
  }
  if (!scheduling.preferred_labels().empty()) {
    absl::StrAppend(&text, "\nprefers ", LabelsText(scheduling.preferred_labels()));
  }
  if (scheduling.wants_fp4_tensor_cores()) {
    absl::StrAppend(&text, "\nprefers FP4 tensor cores");
  }
  return text;
}

std::string AttemptText(const v1::Job& job, const v1::Attempt& attempt, int64_t now_unix_ms) {
  std::string text = absl::StrCat(attempt.number(), " with ", Counted(attempt.world(), "rank"),
                                  ", launched ", AgoText(attempt.launched_unix_ms(), now_unix_ms));
  if (attempt.has_resume()) {
    const bool own = attempt.resume().job() == job.id();
    absl::StrAppend(&text, ", from ",
                    own ? absl::StrCat("the checkpoint of step ", attempt.resume().step())
                        : RefText(attempt.resume()));
  }
  if (attempt.outcome() != v1::ATTEMPT_OUTCOME_UNSPECIFIED) {
    absl::StrAppend(&text, ", ", Word(attempt.outcome()), " ",
                    AgoText(attempt.ended_unix_ms(), now_unix_ms), ": ", attempt.reason());
    return text;
  }
  if (attempt.stopping()) absl::StrAppend(&text, ", stopping after a checkpoint");
  for (const v1::Placement& placement : attempt.placements()) {
    absl::StrAppend(&text, "\n", PlacementText(placement));
  }
  return text;
}

std::string NotifyText(const v1::NotifyTarget& target, int64_t now_unix_ms) {
  std::string text = absl::StrCat(target.url(), "\non ", absl::StrJoin(target.on(), ", "), "\n",
                                  Counted(target.delivered(), "event"), " delivered");
  if (target.given_up() > 0) absl::StrAppend(&text, ", ", target.given_up(), " abandoned");
  if (target.settled_unix_ms() > 0) {
    absl::StrAppend(&text, ", the last ", AgoText(target.settled_unix_ms(), now_unix_ms));
  }
  if (target.wanted_event() > target.settled_event()) absl::StrAppend(&text, "; more pending");
  if (!target.problem().empty()) absl::StrAppend(&text, "\nabandoned: ", target.problem());
  return text;
}

}  // namespace

bool IsOver(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

int ExitCodeOfJob(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_SUCCEEDED:
      return kExitDone;
    case v1::JOB_STATE_FAILED:
      return kExitJobFailed;
    case v1::JOB_STATE_CANCELLED:
      return kExitCancelled;
    default:
      return kExitNotFinished;
  }
}

std::string StepsText(const v1::Job& job) {
  const int64_t steps = job.shape().steps();
  return absl::StrCat(job.next_step(), "/", steps, " (",
                      steps > 0 ? job.next_step() * 100 / steps : 0, "%)");
}

std::string RestartsText(const v1::Job& job) {
  const v1::RestartPolicy& policy = job.restart_policy();
  return absl::StrCat(job.restarts_without_progress(), " of ", policy.max_without_progress(),
                      " without a new checkpoint; pauses of ",
                      DurationText(static_cast<double>(policy.initial_backoff_ms()) / 1000), " to ",
                      DurationText(static_cast<double>(policy.max_backoff_ms()) / 1000));
}

std::string JobTable(const std::vector<v1::Job>& jobs, int64_t now_unix_ms, bool wide) {
  constexpr size_t kColumns = 80, kJobColumns = 24, kLeastReason = 6;
  const auto why = [](const v1::Job& job) {
    return OnOneLine(job.trouble().empty() ? job.state_reason() : job.trouble());
  };
  if (wide) {
    TextTable table({"JOB", "STATE", "STEP", "RANKS", "QUEUE", "PRIORITY", "OWNER", "PROJECT",
                     "SUBMITTED", "FROM", "WHY"});
    for (const v1::Job& job : jobs) {
      table.Add({job.id(), Word(job.state()), StepsText(job),
                 absl::StrCat(job.has_attempt() ? job.attempt().world() : job.shape().ranks()),
                 job.scheduling().queue(), absl::StrCat(job.scheduling().priority()), job.owner(),
                 job.scheduling().project().empty() ? "-" : job.scheduling().project(),
                 AgoText(job.submitted_unix_ms(), now_unix_ms),
                 job.has_origin() ? RefText(job.origin().checkpoint()) : "-", why(job)});
    }
    return table.Text();
  }
  size_t job_columns = 3;
  for (const v1::Job& job : jobs) job_columns = std::max(job_columns, WidthOf(job.id()));
  job_columns = std::min(job_columns, kJobColumns);
  std::vector<std::vector<std::string>> rows;
  TextTable without_reasons({"JOB", "STATE", "STEP", "SUBMITTED", ""});
  for (const v1::Job& job : jobs) {
    rows.push_back({Fit(job.id(), job_columns), Word(job.state()), StepsText(job),
                    AgoText(job.submitted_unix_ms(), now_unix_ms), ""});
    without_reasons.Add(rows.back());
  }
  const std::string text = without_reasons.Text();
  size_t used = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    used = std::max(used, WidthOf(line) + 2);
  }
  if (used + kLeastReason > kColumns) return text;
  const size_t room = kColumns - used;
  TextTable table({"JOB", "STATE", "STEP", "SUBMITTED", "WHY"});
  for (size_t i = 0; i < jobs.size(); ++i) {
    rows[i].back() = Fit(why(jobs[i]), room);
    table.Add(std::move(rows[i]));
  }
  return table.Text();
}

std::string JobText(const v1::Job& job, int64_t now_unix_ms, const std::string& recipe,
                    const std::string& loss) {
  TextList list;
  list.Add("job", absl::StrCat(job.id(), " of ", job.owner()));
  if (!job.scheduling().project().empty()) list.Add("project", job.scheduling().project());
  // The job of a dry run has no times.
  list.Add("state", job.state_since_unix_ms() == 0
                        ? Word(job.state())
                        : absl::StrCat(Word(job.state()), " since ",
                                       AgoText(job.state_since_unix_ms(), now_unix_ms), ", by ",
                                       job.state_author()));
  if (!job.state_reason().empty()) list.Add("why", job.state_reason());
  if (!job.trouble().empty()) list.Add("trouble", job.trouble());
  list.Add("goal", Word(job.goal()));
  list.Add("steps", StepsText(job));
  if (!loss.empty()) list.Add("loss", loss);
  list.Add("model",
           absl::StrCat(job.shape().model(), ", ",
                        CountText(static_cast<double>(job.shape().parameters())), " parameters, ",
                        job.shape().tokens_per_step(), " tokens per step on ",
                        Counted(job.shape().ranks(), "rank"), " of ", Word(job.shape().device())));
  list.Add("recipe",
           absl::StrCat(recipe, recipe.empty() ? "" : "\n",
                        job.revision_in_force() == 0
                            ? std::string("revision 1 will be first")
                            : absl::StrCat("revision ", job.revision_in_force(), " in effect"),
                        "; the latest is ", job.latest_revision()));
  list.Add("checkpoint", job.checkpoint_step() < 0
                             ? "none"
                             : absl::StrCat("newest at step ", job.checkpoint_step()));
  if (job.has_uploads()) list.Add("uploads", UploadsText(job.uploads(), now_unix_ms));
  list.Add("scheduling", SchedulingText(job.scheduling()));
  list.Add("restarts", RestartsText(job));
  for (const v1::JobAlert& alert : job.alerts()) {
    list.Add("alert", absl::StrCat(alert.name(), ", ", AgoText(alert.starts_unix_ms(), now_unix_ms),
                                   ": ", alert.summary()));
  }
  for (const v1::NotifyTarget& target : job.notify()) {
    list.Add("notify", NotifyText(target, now_unix_ms));
  }
  if (job.has_origin()) {
    list.Add(job.origin().weights_only() ? "weights from" : "forked from",
             RefText(job.origin().checkpoint()));
  }
  if (job.submitted_unix_ms() != 0) {
    list.Add("submitted", absl::StrCat(TimeText(job.submitted_unix_ms()), " UTC"));
  }
  if (job.finished_unix_ms() != 0) {
    list.Add("finished", absl::StrCat(TimeText(job.finished_unix_ms()), " UTC"));
  }
  if (job.has_attempt()) list.Add("attempt", AttemptText(job, job.attempt(), now_unix_ms));
  for (auto ended = job.recent_attempts().rbegin(); ended != job.recent_attempts().rend();
       ++ended) {
    list.Add("attempt", AttemptText(job, *ended, now_unix_ms));
  }
  for (const v1::WorkerBlame& blame : job.blames()) {
    list.Add("blamed",
             absl::StrCat(blame.worker(), ": ended ", Counted(blame.failures(), "attempt"),
                          blame.excluded() ? "; excluded from the job" : ""));
  }
  return list.Text();
}

std::string JobLine(const v1::Job& job) {
  const bool ended = job.state() == v1::JOB_STATE_SUCCEEDED || job.state() == v1::JOB_STATE_FAILED;
  std::string line =
      absl::StrCat(job.id(), ended ? " has " : " is ", Word(job.state()), " at ", StepsText(job));
  const bool paused = job.state() == v1::JOB_STATE_PAUSED;
  if (job.goal() == v1::JOB_GOAL_PAUSE && !paused) {
    absl::StrAppend(&line, ", to be paused at a step boundary");
  }
  if (job.goal() == v1::JOB_GOAL_RUN && paused) absl::StrAppend(&line, ", to be resumed");
  if (job.goal() == v1::JOB_GOAL_CANCEL && !IsOver(job.state())) {
    absl::StrAppend(&line, ", to be cancelled after a last checkpoint");
  }
  if (!job.state_reason().empty()) absl::StrAppend(&line, ": ", job.state_reason());
  if (!job.trouble().empty()) absl::StrAppend(&line, "; ", job.trouble());
  return absl::StrCat(line, "\n");
}

std::string EventText(const v1::JobEvent& event) {
  std::string text;
  if (event.kind() == v1::JOB_EVENT_KIND_MOVED) {
    text = absl::StrCat(Word(event.from()), " → ", Word(event.to()),
                        event.text().empty() ? "" : ": ", event.text());
  } else if (event.kind() == v1::JOB_EVENT_KIND_CHECKPOINT) {
    text =
        absl::StrCat("checkpoint", event.step() < 0 ? "" : absl::StrCat(" of step ", event.step()),
                     " ", event.text());
  } else {
    text = event.text();
  }
  return event.author().empty() ? text : absl::StrCat(text, " (", event.author(), ")");
}

std::string EventTable(const std::vector<v1::JobEvent>& events) {
  TextTable table({"TIME (UTC)", "ATTEMPT", "STEP", "EVENT"});
  for (const v1::JobEvent& event : events) {
    table.Add({TimeText(event.time_unix_ms()),
               event.attempt() == 0 ? "-" : absl::StrCat(event.attempt()),
               event.step() < 0 ? "-" : absl::StrCat(event.step()), Fit(EventText(event), 400)});
  }
  return table.Text();
}

std::string RefText(const v1::CheckpointRef& ref) {
  return absl::StrCat(ref.job(), "@", ref.step());
}

std::string PlacementText(const v1::Placement& placement) {
  const int last = placement.first_rank() + placement.slots_size() - 1;
  std::string text = absl::StrCat(placement.worker(), ": ",
                                  last > placement.first_rank()
                                      ? absl::StrCat("ranks ", placement.first_rank(), "-", last)
                                      : absl::StrCat("rank ", placement.first_rank()),
                                  " ", Word(placement.phase()));
  if (!placement.detail().empty()) absl::StrAppend(&text, ": ", placement.detail());
  return text;
}

namespace {

using Settings = google::protobuf::RepeatedPtrField<v1::FieldSetting>;

void AddSettings(const std::vector<FieldSetting>& settings, Settings& messages) {
  for (const FieldSetting& setting : settings) {
    v1::FieldSetting& message = *messages.Add();
    message.set_field(setting.field);
    message.set_value(setting.value);
  }
}

void AppendSettings(const Settings& settings, const char* between, std::string& text) {
  const char* before = "";
  for (const v1::FieldSetting& setting : settings) {
    absl::StrAppend(&text, before, setting.field(), "=", setting.value());
    before = between;
  }
}

}  // namespace

v1::RecipeChange ChangeMessage(const Recipe& change) {
  v1::RecipeChange message;
  AddSettings(change.set, *message.mutable_set());
  for (const LayerRule& rule : change.layers) {
    v1::LayerRule& layer = *message.add_layers();
    layer.set_match(rule.match);
    AddSettings(rule.set, *layer.mutable_set());
  }
  return message;
}

std::string RecipeText(const v1::Recipe& recipe) {
  std::string text = recipe.preset();
  if (!recipe.set().empty()) absl::StrAppend(&text, ", ");
  AppendSettings(recipe.set(), ", ", text);
  for (const v1::LayerRule& rule : recipe.layers()) {
    absl::StrAppend(&text, ", ", rule.match(), ":");
    AppendSettings(rule.set(), ",", text);
  }
  return text;
}

}  // namespace nibble
