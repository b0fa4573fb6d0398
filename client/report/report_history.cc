#include "client/report/report_history.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/report/run_events.h"
#include "common/counted.h"
#include "common/text/text.h"

namespace nibble {
namespace {

using HistoryJson = nlohmann::ordered_json;

}  // namespace

HistoryJson ReportTimeline(const ReportedJob& job) {
  HistoryJson timeline = HistoryJson::array();
  std::vector<const ReportedRevision*> in_effect;
  for (const ReportedRevision& one : job.revisions) {
    if (!one.revision.refused().empty()) continue;
    // A later revision from the same or an earlier step supersedes this one before it runs.
    while (!in_effect.empty() &&
           in_effect.back()->revision.first_step() >= one.revision.first_step()) {
      in_effect.pop_back();
    }
    in_effect.push_back(&one);
  }
  for (const ReportedRevision* one : in_effect) {
    const v1::RecipeRevision& revision = one->revision;
    HistoryJson lines = HistoryJson::array();
    lines.push_back(absl::StrCat("from step ", revision.first_step(),
                                 revision.confirmed() ? "" : ", not run yet"));
    if (!revision.author().empty()) {
      lines.push_back(
          absl::StrCat("by ", revision.author(), ", ", TimeText(revision.time_unix_ms()), " UTC"));
    }
    if (!revision.reason().empty()) lines.push_back(revision.reason());
    timeline.push_back({{"number", revision.number()},
                        {"first", revision.first_step()},
                        {"title", one->recipe},
                        {"lines", std::move(lines)}});
  }
  if (timeline.empty()) {
    timeline.push_back(
        {{"number", 1}, {"first", 0}, {"title", ""}, {"lines", HistoryJson::array()}});
  }
  return timeline;
}

HistoryJson ReportMarks(const ReportInput& input) {
  std::vector<std::pair<int64_t, HistoryJson>> marks;
  const auto add = [&marks](int64_t step, const char* kind, const std::string& text) {
    marks.emplace_back(step, HistoryJson{{"step", step}, {"kind", kind}, {"text", text}});
  };
  for (const v1::Checkpoint& checkpoint : input.checkpoints) {
    if (checkpoint.state() == v1::CHECKPOINT_STATE_WRITING || checkpoint.left()) continue;
    add(checkpoint.ref().step(), "checkpoint",
        absl::StrCat("checkpoint of step ", checkpoint.ref().step(), ", ",
                     BytesText(checkpoint.bytes()),
                     checkpoint.state() == v1::CHECKPOINT_STATE_DAMAGED ? ", damaged" : ""));
  }
  const v1::Job& job = input.job.job;
  const auto restart = [&](const v1::Attempt& attempt) {
    if (attempt.number() <= 1) return;
    const bool own = attempt.has_resume() && attempt.resume().job() == job.id();
    const int64_t step = own ? attempt.resume().step() : 0;
    add(step, "restart",
        absl::StrCat("attempt ", attempt.number(), " starts at step ", step, " with ",
                     Counted(attempt.world(), "rank")));
  };
  for (const v1::Attempt& attempt : job.recent_attempts()) restart(attempt);
  if (job.has_attempt()) restart(job.attempt());
  for (const RunNote& note : input.job.record.notes) {
    if (note.kind == "guard" || note.kind == "error") add(note.step, "guard", note.text);
  }
  std::stable_sort(marks.begin(), marks.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // A guard that observes something at every step of a long run would fill the page.
  constexpr int64_t kMostObserved = 3000;
  const auto observed = [](const HistoryJson& mark) {
    return mark["kind"] == "guard" && OnlyObserved(mark["text"].get<std::string>());
  };
  const int64_t stride =
      std::count_if(marks.begin(), marks.end(), [&](const auto& m) { return observed(m.second); }) /
          kMostObserved +
      1;
  HistoryJson json = HistoryJson::array();
  int64_t seen = 0;
  for (auto& [step, mark] : marks) {
    if (!observed(mark) || seen++ % stride == 0) json.push_back(std::move(mark));
  }
  return json;
}

}  // namespace nibble
