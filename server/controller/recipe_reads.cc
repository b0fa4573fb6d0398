#include <string>

#include "absl/strings/str_cat.h"
#include "job/job_spec.h"
#include "model/outline.h"
#include "recipe/cost.h"
#include "recipe/diff.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/render.h"
#include "recipe/timeline.h"
#include "server/controller/reads.h"
#include "server/state/limits.h"
#include "server/state/recipe_history.h"
#include "server/state/timeline_record.h"

namespace nibble {
namespace {

constexpr int kRevisionsPerPage = 1000;

absl::StatusOr<const v1::TimelineRecord*> FindTimeline(const State& state, const std::string& job) {
  const v1::TimelineRecord* const timeline = state.FindTimeline(job);
  if (timeline == nullptr) return absl::NotFoundError(absl::StrCat("job: there is no '", job, "'"));
  return timeline;
}

// The model of a job, and its spec.
struct Model {
  JobSpec spec;
  Outline outline;
};
absl::StatusOr<Model> ModelOf(const State& state, const std::string& job) {
  absl::StatusOr<JobSpec> spec = ParseJobSpec(state.FindSpec(job)->spec_yaml());
  if (!spec.ok()) return spec.status();
  absl::StatusOr<Outline> outline = MakeOutline(spec->model);
  if (!outline.ok()) return outline.status();
  return Model{*std::move(spec), *std::move(outline)};
}

}  // namespace

absl::StatusOr<v1::GetRecipeResponse> Answer(const ReadContext& context,
                                             const v1::GetRecipeRequest& request) {
  const auto timeline = FindTimeline(context.state, request.job());
  if (!timeline.ok()) return timeline.status();
  int64_t number = request.revision();
  if (number == 0) number = (*timeline)->in_force();
  if (number == 0) number = (*timeline)->revisions(0).number();
  const auto revision = FindRevision(context.state, request.job(), "revision", number);
  if (!revision.ok()) return revision.status();
  v1::GetRecipeResponse response;
  *response.mutable_revision() = **revision;
  response.set_latest_revision((*timeline)->revisions().rbegin()->number());
  if (!request.resolved()) return response;
  const absl::StatusOr<Model> model = ModelOf(context.state, request.job());
  if (!model.ok()) return model.status();
  const auto resolved = Resolve(FromMessage((*revision)->recipe()), model->outline, 0);
  if (!resolved.ok()) return resolved.status();
  const auto table = RenderTable(*resolved, model->outline, Grouping::kEqual);
  if (!table.ok()) return table.status();
  const auto json = RenderJson(*resolved, model->outline);
  if (!json.ok()) return json.status();
  response.set_table(*table);
  response.set_table_json(*json);
  return response;
}

absl::StatusOr<v1::DiffRecipeResponse> Answer(const ReadContext& context,
                                              const v1::DiffRecipeRequest& request) {
  const auto timeline = FindTimeline(context.state, request.job());
  if (!timeline.ok()) return timeline.status();
  const int64_t first = request.from_revision() == 0
                            ? AllRevisions(context.state, request.job()).front()->number()
                            : request.from_revision();
  const auto from = FindRevision(context.state, request.job(), "from_revision", first);
  if (!from.ok()) return from.status();
  const int64_t last = request.to_revision() == 0 ? (*timeline)->revisions().rbegin()->number()
                                                  : request.to_revision();
  const auto to = FindRevision(context.state, request.job(), "to_revision", last);
  if (!to.ok()) return to.status();
  const absl::StatusOr<Model> model = ModelOf(context.state, request.job());
  if (!model.ok()) return model.status();
  const Outline& outline = model->outline;
  const auto before = Resolve(FromMessage((*from)->recipe()), outline, 0);
  if (!before.ok()) return before.status();
  const auto after = Resolve(FromMessage((*to)->recipe()), outline, 0);
  if (!after.ok()) return after.status();
  const absl::StatusOr<RecipeDiff> diff = Diff(*before, *after, outline);
  if (!diff.ok()) return diff.status();
  v1::DiffRecipeResponse response;
  for (const RecipeChangeGroup& group : diff->groups) {
    v1::RecipeDifference& difference = *response.add_differences();
    difference.set_field(group.field);
    difference.set_from(group.from);
    difference.set_to(group.to);
    for (const int64_t layer : group.layers) {
      difference.add_layers(outline.linears[static_cast<size_t>(layer)].name);
    }
  }
  response.set_text(DiffText(*diff, outline));
  return response;
}

absl::StatusOr<v1::ListRecipeRevisionsResponse> Answer(
    const ReadContext& context, const v1::ListRecipeRevisionsRequest& request) {
  const auto timeline = FindTimeline(context.state, request.job());
  if (!timeline.ok()) return timeline.status();
  if (request.after_number() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("after_number: ", request.after_number(), "; allowed: 0 and more"));
  }
  v1::ListRecipeRevisionsResponse response;
  response.set_archived((*timeline)->archived());
  int64_t bytes = 0;
  const auto add = [&](const v1::RecipeRevision& revision) {
    if (revision.number() <= request.after_number() || response.more()) return;
    bytes += static_cast<int64_t>(revision.ByteSizeLong());
    // However large a recipe is, one fits.
    if (response.revisions_size() == kRevisionsPerPage ||
        (bytes > kMaxTimelineBytes && !response.revisions().empty())) {
      response.set_more(true);
    } else {
      *response.add_revisions() = revision;
    }
  };
  if (request.all()) {
    for (const auto* revision : AllRevisions(context.state, request.job())) add(*revision);
  } else {
    for (const v1::RecipeRevision& revision : (*timeline)->revisions()) add(revision);
  }
  return response;
}

absl::StatusOr<v1::ListRecipePresetsResponse> Answer(const ReadContext&,
                                                     const v1::ListRecipePresetsRequest&) {
  v1::ListRecipePresetsResponse response;
  for (const Preset& preset : AllPresets()) {
    v1::RecipePreset& entry = *response.add_presets();
    entry.set_name(preset.name);
    entry.set_summary(preset.summary);
  }
  return response;
}

absl::StatusOr<v1::GetRecipeCostResponse> Answer(const ReadContext& context,
                                                 const v1::GetRecipeCostRequest& request) {
  const auto record = FindTimeline(context.state, request.job());
  if (!record.ok()) return record.status();
  absl::StatusOr<Timeline> timeline = ToTimeline(WholeTimeline(context.state, request.job()));
  if (!timeline.ok()) return timeline.status();
  if (request.revision() != 0) {
    const auto revision =
        FindRevision(context.state, request.job(), "revision", request.revision());
    if (!revision.ok()) return revision.status();
    timeline = Timeline(FromMessage((*revision)->recipe()));
  }
  if (request.change().set_size() + request.change().layers_size() > 0) {
    // Over the whole run: what it would cost from the first step on.
    const auto number =
        timeline->Append(-1, FromMessage(request.change()), 0, 0, "", context.now_ms, "");
    if (!number.ok()) return number.status();
  }
  const absl::StatusOr<Model> model = ModelOf(context.state, request.job());
  if (!model.ok()) return model.status();
  const absl::StatusOr<GemmCost> cost =
      CostOf(*timeline, model->outline, model->spec.data.sequence, model->spec.training.steps);
  if (!cost.ok()) return cost.status();
  v1::GetRecipeCostResponse response;
  v1::RecipeCost& ratios = *response.mutable_cost();
  ratios.set_fprop_ratio(cost->fprop);
  ratios.set_dgrad_ratio(cost->dgrad);
  ratios.set_wgrad_ratio(cost->wgrad);
  ratios.set_attention_ratio(cost->attention);
  ratios.set_total_ratio(cost->total());
  return response;
}

}  // namespace nibble
