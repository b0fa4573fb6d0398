#include "server/state/timeline_record.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/recipe_check.h"
#include "model/outline.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/state.h"

namespace nibble {
namespace {

using SettingMessages = google::protobuf::RepeatedPtrField<v1::FieldSetting>;
using RuleMessages = google::protobuf::RepeatedPtrField<v1::LayerRule>;

std::vector<FieldSetting> FromMessages(const SettingMessages& messages) {
  std::vector<FieldSetting> settings;
  settings.reserve(static_cast<size_t>(messages.size()));
  for (const v1::FieldSetting& message : messages) {
    settings.push_back({message.field(), message.value()});
  }
  return settings;
}

std::vector<LayerRule> FromMessages(const RuleMessages& messages) {
  std::vector<LayerRule> rules;
  rules.reserve(static_cast<size_t>(messages.size()));
  for (const v1::LayerRule& message : messages) {
    rules.push_back({message.match(), FromMessages(message.set())});
  }
  return rules;
}

void ToMessages(const std::vector<FieldSetting>& settings, SettingMessages& messages) {
  for (const FieldSetting& setting : settings) {
    v1::FieldSetting* const message = messages.Add();
    message->set_field(setting.field);
    message->set_value(setting.value);
  }
}

}  // namespace

Recipe FromMessage(const v1::Recipe& message) {
  return {message.preset(), FromMessages(message.set()), FromMessages(message.layers())};
}

Recipe FromMessage(const v1::RecipeChange& message) {
  Recipe change;
  change.set = FromMessages(message.set());
  change.layers = FromMessages(message.layers());
  return change;
}

Revision FromMessage(const v1::RecipeRevision& message) {
  return {message.number(),  message.first_step(),
          message.author(),  message.time_unix_ms(),
          message.reason(),  FromMessage(message.recipe()),
          message.refused(), message.lr_scale() == 0 ? 1 : message.lr_scale()};
}

v1::Recipe ToMessage(const Recipe& recipe) {
  v1::Recipe message;
  message.set_preset(recipe.preset);
  ToMessages(recipe.set, *message.mutable_set());
  for (const LayerRule& rule : recipe.layers) {
    v1::LayerRule* const to = message.add_layers();
    to->set_match(rule.match);
    ToMessages(rule.set, *to->mutable_set());
  }
  return message;
}

v1::RecipeRevision ToMessage(const Revision& revision) {
  v1::RecipeRevision message;
  message.set_number(revision.number);
  message.set_first_step(revision.first_step);
  message.set_author(revision.author);
  message.set_time_unix_ms(revision.time_unix_ms);
  message.set_reason(revision.reason);
  *message.mutable_recipe() = ToMessage(revision.recipe);
  message.set_refused(revision.refused);
  if (revision.lr_scale != 1) message.set_lr_scale(revision.lr_scale);
  return message;
}

absl::StatusOr<Timeline> ToTimeline(const RevisionMessages& revisions) {
  std::vector<Revision> values;
  values.reserve(static_cast<size_t>(revisions.size()));
  for (const v1::RecipeRevision& revision : revisions) values.push_back(FromMessage(revision));
  return Timeline::FromRevisions(std::move(values));
}

RevisionMessages ForRanks(const v1::TimelineRecord& record) {
  RevisionMessages revisions = record.revisions();
  if (!revisions.empty()) revisions[0].set_first_step(0);
  return revisions;
}

absl::StatusOr<Timeline> ToTimeline(const v1::TimelineRecord& record) {
  return ToTimeline(ForRanks(record));
}

RevisionMessages ToMessages(const Timeline& timeline) {
  RevisionMessages messages;
  for (const Revision& revision : timeline.revisions()) *messages.Add() = ToMessage(revision);
  return messages;
}

namespace {

// `reaches_back`: whether the first revision must begin at step 0.
absl::Status Check(const RevisionMessages& revisions, bool reaches_back) {
  if (revisions.empty()) return absl::InvalidArgumentError("revisions: is empty");
  if (revisions.size() > kMaxRevisions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("revisions: ", revisions.size(), "; a job has at most ", kMaxRevisions));
  }
  int64_t bytes = 0;
  std::vector<Revision> numbers;  // without recipes, which a timeline's invariants do not involve
  for (const v1::RecipeRevision& revision : revisions) {
    NIBBLE_RETURN_IF_ERROR(CheckRange("first_step", revision.first_step(), 0, kMaxSteps));
    bytes += static_cast<int64_t>(revision.ByteSizeLong());
    numbers.push_back({.number = revision.number(),
                       .first_step = revision.first_step(),
                       .refused = revision.refused(),
                       .lr_scale = revision.lr_scale() == 0 ? 1 : revision.lr_scale()});
  }
  if (bytes > kMaxTimelineBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("revisions: ", bytes, " bytes; at most ", kMaxTimelineBytes));
  }
  if (!reaches_back) numbers[0].first_step = 0;
  return Timeline::FromRevisions(std::move(numbers)).status();
}

}  // namespace

absl::Status CheckRevisions(const RevisionMessages& revisions) { return Check(revisions, true); }

absl::Status CheckTimelineRecord(const v1::TimelineRecord& record) {
  return Check(record.revisions(), record.archived() == 0);
}

std::vector<int64_t> Archivable(const v1::TimelineRecord& record, int64_t needed, bool ranks_live) {
  const RevisionMessages& revisions = record.revisions();
  const auto known = [&](const v1::RecipeRevision& revision) {
    return revision.refused().empty() && (!ranks_live || revision.confirmed());
  };
  int base = 0;  // in effect at the step `needed`
  for (int i = 0; i < revisions.size(); ++i) {
    if (revisions[i].first_step() <= needed && known(revisions[i])) base = i;
  }
  std::vector<int64_t> archivable;
  int64_t next_step =
      kMaxSteps + 1;  // the first step of the next revision that ranks are known to run
  for (int i = revisions.size() - 1; i >= 0; --i) {
    const v1::RecipeRevision& revision = revisions[i];
    // Superseded at its own first step, so never run.
    const bool never = revision.first_step() == next_step &&
                       !(ranks_live && revision.confirmed()) && revision.refused().empty();
    if (i < base || (i > base && never)) archivable.push_back(revision.number());
    if (known(revision)) next_step = revision.first_step();
  }
  std::reverse(archivable.begin(), archivable.end());
  return archivable;
}

absl::Status CheckTimeline(const Timeline& timeline, int64_t known, JobSpec spec,
                           absl::Span<const int32_t> worlds) {
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec.model));
  std::set<int64_t> checked;  // micro-batch sizes: a recipe depends on nothing else of a world
  for (const int32_t world : worlds) {
    spec.resources.ranks = world;
    if (!checked.insert(MicroBatch(spec)).second) continue;
    for (const Revision& revision : timeline.revisions()) {
      if (revision.number <= known || !revision.refused.empty()) continue;
      const absl::Status status = CheckRecipe(revision.recipe, outline, spec);
      if (status.ok()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("revision ", revision.number, " with ", world,
                       world == 1 ? " rank: " : " ranks: ", status.message()));
    }
  }
  return absl::OkStatus();
}

int CommonRevisions(const RevisionMessages& before, const Timeline& after) {
  int common = 0;
  while (common < before.size() && common < static_cast<int>(after.revisions().size()) &&
         before[common].number() == after.revisions()[static_cast<size_t>(common)].number) {
    ++common;
  }
  return common;
}

absl::StatusOr<const v1::RecipeRevision*> FindRevision(const State& state, absl::string_view job,
                                                       absl::string_view field, int64_t number) {
  const v1::TimelineRecord& timeline = *state.FindTimeline(job);
  for (const v1::RecipeRevision& revision : timeline.revisions()) {
    if (revision.number() == number) return &revision;
  }
  if (number > 0) {
    const v1::RecipeRevision* const archived =
        FindIn(state.tables().archive, RevisionKey(job, number));
    if (archived != nullptr) return archived;
  }
  return absl::NotFoundError(absl::StrCat(field, ": there is no ", number, "; the latest is ",
                                          timeline.revisions().rbegin()->number()));
}

std::vector<const v1::RecipeRevision*> AllRevisions(const State& state, absl::string_view job) {
  const std::vector<const v1::RecipeRevision*> archive = state.ArchiveOf(job);
  std::vector<const v1::RecipeRevision*> timeline;
  for (const v1::RecipeRevision& revision : state.FindTimeline(job)->revisions()) {
    timeline.push_back(&revision);
  }
  std::vector<const v1::RecipeRevision*> all;
  std::merge(archive.begin(), archive.end(), timeline.begin(), timeline.end(),
             std::back_inserter(all),
             [](const auto* a, const auto* b) { return a->number() < b->number(); });
  return all;
}

std::vector<const v1::RecipeRevision*> Returning(
    const v1::TimelineRecord& record, absl::Span<const v1::RecipeRevision* const> archive,
    int64_t needed) {
  std::vector<const v1::RecipeRevision*> back;
  if (record.archived() == 0 || record.revisions(0).first_step() <= needed) return back;
  // Newest first: the revisions that ranks ran, back to the one in effect at the needed step.
  for (auto entry = archive.rbegin(); entry != archive.rend(); ++entry) {
    const v1::RecipeRevision& revision = **entry;
    if (revision.number() >= record.revisions(0).number()) continue;
    // If ranks never reported, only the first revision is known to have been in effect.
    const bool first = entry + 1 == archive.rend();
    if (!revision.confirmed() && !first) continue;
    back.push_back(&revision);
    if (revision.first_step() <= needed) break;
  }
  std::reverse(back.begin(), back.end());
  return back;
}

v1::TimelineRecord CoveredFrom(const State& state, absl::string_view job, int64_t needed) {
  v1::TimelineRecord record = *state.FindTimeline(job);
  RevisionMessages revisions;
  for (const v1::RecipeRevision* revision : Returning(record, state.ArchiveOf(job), needed)) {
    *revisions.Add() = *revision;
  }
  record.set_archived(record.archived() - revisions.size());
  revisions.MergeFrom(record.revisions());
  record.mutable_revisions()->Swap(&revisions);
  return record;
}

RevisionMessages WholeTimeline(const State& state, absl::string_view job) {
  const v1::TimelineRecord& timeline = *state.FindTimeline(job);
  if (timeline.archived() == 0) return timeline.revisions();
  RevisionMessages whole;
  for (const v1::RecipeRevision* revision : state.ArchiveOf(job)) {
    const bool before = revision->number() < timeline.revisions(0).number();
    if (before && revision->confirmed()) *whole.Add() = *revision;
  }
  whole.MergeFrom(timeline.revisions());
  whole[0].set_first_step(0);
  return whole;
}

}  // namespace nibble
