#include "client/remote/job_recording.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/remote/event_lines.h"
#include "client/remote/job_text.h"
#include "client/remote/loss_comparison.h"
#include "client/remote/rpcs.h"
#include "common/counted.h"
#include "common/status_macros.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

// Each worker that ran rank 0, with the latest attempt in which it did: it has one event log.
std::map<std::string, int64_t> EventLogsOf(const v1::Job& job) {
  std::map<std::string, int64_t> logs;
  const auto add = [&logs](const v1::Attempt& attempt) {
    for (const v1::Placement& placement : attempt.placements()) {
      if (placement.first_rank() != 0) continue;
      int64_t& latest = logs[placement.worker()];
      latest = std::max(latest, attempt.number());
    }
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) add(attempt);
  if (job.has_attempt()) add(job.attempt());
  return logs;
}

// "0 to 199, 300, 400 to 499 and 2 more gaps"
std::string GapsText(const std::vector<StepGap>& gaps) {
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < std::min(gaps.size(), kNamed); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", gaps[i].first);
    if (gaps[i].count > 1) absl::StrAppend(&text, " to ", gaps[i].last);
  }
  if (gaps.size() > kNamed) absl::StrAppend(&text, " and ", gaps.size() - kNamed, " more gaps");
  return text;
}

class Reader {
 public:
  Reader(Session& session, const v1::Job& job, const RecordingOptions& options)
      : session_(session), job_(job), options_(options) {}

  absl::StatusOr<JobRecording> Run() {
    NIBBLE_RETURN_IF_ERROR(ReadSpec());
    v1::GetJobMetricsRequest request;
    request.set_job(job_.id());
    request.set_max_samples(kMostComparedSamples);
    NIBBLE_ASSIGN_OR_RETURN(const v1::GetJobMetricsResponse metrics,
                            session_.Call(kGetJobMetrics, request));
    const std::vector<v1::StepSample> samples(metrics.series().begin(), metrics.series().end());
    if (options_.only_losses) {
      AddSamples(samples, out_.record);
      // The coordinator may not know how far an ended job came.
      if (!out_.record.steps.empty() && Gaps().empty()) return std::move(out_);
    }
    ReadLogs();
    AddSamples(samples, out_.record);
    SayMissing();
    return std::move(out_);
  }

 private:
  absl::Status ReadSpec() {
    v1::DescribeJobRequest request;
    request.set_job(job_.id());
    request.set_with_spec(true);
    NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeJobResponse described,
                            session_.Call(kDescribeJob, request));
    const absl::StatusOr<JobSpec> spec = ParseJobSpec(described.spec_yaml());
    if (spec.ok()) {
      log_every_ = spec->metrics.log_every;
    } else {
      out_.notes.push_back(absl::StrCat(job_.id(), ": which steps are missing is not known, since ",
                                        "its spec cannot be read: ", spec.status().message()));
    }
    return absl::OkStatus();
  }

  void ReadLogs() {
    RunEvents events(options_.with_precision);
    for (const auto& [worker, attempt] : EventLogsOf(job_)) {
      events.BeginLog();
      int64_t lines = 0;
      JobEventLines log(session_, job_.id(), attempt, options_.patience);
      const absl::Status read = log.Read(false, {.take =
                                                     [&](std::string_view line) {
                                                       events.Add(line);
                                                       ++lines;
                                                       return absl::OkStatus();
                                                     },
                                                 .pause = [] { return absl::OkStatus(); }});
      if (read.ok()) continue;
      out_.worker_away |= absl::IsUnavailable(read) || absl::IsDeadlineExceeded(read);
      absl::StrAppend(&unread_, unread_.empty() ? "" : ", and ", "the event log of worker ", worker,
                      ", which ran rank 0 in attempt ", attempt, ", could not be read",
                      lines > 0 ? " to its end: " : ": ", read.message());
    }
    out_.record = events.Finish();
    if (out_.record.unreadable > 0) {
      out_.notes.push_back(absl::StrCat(job_.id(), ": ", Counted(out_.record.unreadable, "line"),
                                        " of the event log could not be read"));
    }
  }

  std::vector<StepGap> Gaps() const {
    if (log_every_ == 0) return {};
    const bool forked = job_.has_origin() && !job_.origin().weights_only();
    const int64_t first = forked ? job_.origin().checkpoint().step() : 0;
    int64_t end = job_.next_step();
    // The newest steps of a running job are on their way.
    if (!IsOver(job_.state()) && !out_.record.steps.empty()) {
      end = std::min(end, out_.record.steps.rbegin()->first + 1);
    }
    return MissingSteps(out_.record, first, end, log_every_, job_.shape().steps() - 1);
  }

  void SayMissing() {
    const std::vector<StepGap> gaps = Gaps();
    for (const StepGap& gap : gaps) out_.missing += gap.count;
    if (gaps.empty() && unread_.empty()) return;
    if (gaps.empty()) {
      out_.notes.push_back(absl::StrCat(
          job_.id(), ": ", out_.record.steps.empty() ? "no losses are known: " : "", unread_,
          out_.record.steps.empty() ? ""
                                    : ". Its steps are the coordinator's samples, without their "
                                      "parts and without precision statistics"));
      return;
    }
    out_.notes.push_back(absl::StrCat(
        job_.id(), ": the losses of ", Counted(out_.missing, "step"), " are missing, ",
        GapsText(gaps), ": ",
        unread_.empty() ? "no worker that is known to have run rank 0 has them" : unread_));
  }

  Session& session_;
  const v1::Job& job_;
  const RecordingOptions& options_;
  int64_t log_every_ = 0;  // 0: unknown
  std::string unread_;     // logs, with reasons
  JobRecording out_;
};

}  // namespace

absl::StatusOr<JobRecording> ReadRecording(Session& session, const v1::Job& job,
                                           const RecordingOptions& options) {
  return Reader(session, job, options).Run();
}

std::vector<v1::StepSample> LossSamples(const RunRecord& record) {
  std::vector<v1::StepSample> samples;
  for (const auto& [step, figures] : record.steps) {
    v1::StepSample& sample = samples.emplace_back();
    sample.set_step(step);
    if (std::isfinite(figures.tokens)) sample.set_tokens(std::llround(figures.tokens));
    sample.set_loss(figures.loss);
    sample.set_updated(true);
  }
  return samples;
}

std::vector<StepGap> MissingSteps(const RunRecord& record, int64_t first, int64_t end,
                                  int64_t log_every, int64_t last) {
  std::vector<StepGap> gaps;
  bool open = false;
  const auto check = [&](int64_t step) {
    const bool missing = !record.steps.contains(step);
    if (missing && !open) gaps.push_back({.first = step});
    open = missing;
    if (!missing) return;
    gaps.back().last = step;
    ++gaps.back().count;
  };
  int64_t step = (first + log_every - 1) / log_every * log_every;
  for (; step < end; step += log_every) check(step);
  if (last >= first && last < end && last % log_every != 0) check(last);
  return gaps;
}

}  // namespace nibble
