#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "job/job_spec.h"
#include "model/outline.h"
#include "recipe/cost.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/render.h"
#include "recipe/timeline.h"
#include "server/controller/reads.h"
#include "server/state/limits.h"
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
  NIBBLE_ASSIGN_OR_RETURN(JobSpec spec, ParseJobSpec(state.FindSpec(job)->spec_yaml()));
  NIBBLE_ASSIGN_OR_RETURN(Outline outline, MakeOutline(spec.model));
  return Model{std::move(spec), std::move(outline)};
}

}  // namespace

absl::StatusOr<v1::GetRecipeResponse> Answer(const ReadContext& context,
                                             const v1::GetRecipeRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const auto timeline, FindTimeline(context.state, request.job()));
  int64_t number = request.revision();
  if (number == 0) number = timeline->in_force();
  if (number == 0) number = timeline->revisions(0).number();
  NIBBLE_ASSIGN_OR_RETURN(const auto revision,
                          FindRevision(context.state, request.job(), "revision", number));
  v1::GetRecipeResponse response;
  *response.mutable_revision() = *revision;
  response.set_latest_revision(timeline->revisions().rbegin()->number());
  if (!request.resolved()) return response;
  NIBBLE_ASSIGN_OR_RETURN(const Model model, ModelOf(context.state, request.job()));
  NIBBLE_ASSIGN_OR_RETURN(const auto resolved,
                          Resolve(FromMessage(revision->recipe()), model.outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const auto table, RenderTable(resolved, model.outline, Grouping::kEqual));
  NIBBLE_ASSIGN_OR_RETURN(const auto json, RenderJson(resolved, model.outline));
  response.set_table(table);
  response.set_table_json(json);
  return response;
}

absl::StatusOr<v1::DiffRecipeResponse> Answer(const ReadContext& context,
                                              const v1::DiffRecipeRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const auto timeline, FindTimeline(context.state, request.job()));
  const int64_t first = request.from_revision() == 0
                            ? AllRevisions(context.state, request.job()).front()->number()
                            : request.from_revision();
  NIBBLE_ASSIGN_OR_RETURN(const auto from,
                          FindRevision(context.state, request.job(), "from_revision", first));
  const int64_t last =
      request.to_revision() == 0 ? timeline->revisions().rbegin()->number() : request.to_revision();
  NIBBLE_ASSIGN_OR_RETURN(const auto to,
                          FindRevision(context.state, request.job(), "to_revision", last));
  NIBBLE_ASSIGN_OR_RETURN(const Model model, ModelOf(context.state, request.job()));
  const Outline& outline = model.outline;
  NIBBLE_ASSIGN_OR_RETURN(const auto before, Resolve(FromMessage(from->recipe()), outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const auto after, Resolve(FromMessage(to->recipe()), outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(before, after, outline));
  v1::DiffRecipeResponse response;
  for (const RecipeChangeGroup& group : diff.groups) {
    v1::RecipeDifference& difference = *response.add_differences();
    difference.set_field(group.field);
    difference.set_from(group.from);
    difference.set_to(group.to);
    for (const int64_t layer : group.layers) {
      difference.add_layers(outline.linears[static_cast<size_t>(layer)].name);
    }
  }
  response.set_text(DiffText(diff, outline));
  return response;
}

absl::StatusOr<v1::ListRecipeRevisionsResponse> Answer(
    const ReadContext& context, const v1::ListRecipeRevisionsRequest& request) {
  NIBBLE_ASSIGN_OR_RETURN(const auto timeline, FindTimeline(context.state, request.job()));
  if (request.after_number() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("after_number: ", request.after_number(), "; allowed: 0 and more"));
  }
  v1::ListRecipeRevisionsResponse response;
  response.set_archived(timeline->archived());
  int64_t bytes = 0;
  const auto add = [&](const v1::RecipeRevision& revision) {
    if (revision.number() <= request.after_number() || response.more()) return;
    bytes += static_cast<int64_t>(revision.ByteSizeLong());
    // The first one is returned whatever its size.
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
    for (const v1::RecipeRevision& revision : timeline->revisions()) add(revision);
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
  NIBBLE_RETURN_IF_ERROR(FindTimeline(context.state, request.job()).status());
  NIBBLE_ASSIGN_OR_RETURN(Timeline timeline,
                          ToTimeline(WholeTimeline(context.state, request.job())));
  if (request.revision() != 0) {
    NIBBLE_ASSIGN_OR_RETURN(const auto revision, FindRevision(context.state, request.job(),
                                                              "revision", request.revision()));
    timeline = Timeline(FromMessage(revision->recipe()));
  }
  if (request.change().set_size() + request.change().layers_size() > 0) {
    // The cost of the whole run from the first step on.
    NIBBLE_RETURN_IF_ERROR(
        timeline.Append(-1, FromMessage(request.change()), 0, 0, "", context.now_ms, "").status());
  }
  NIBBLE_ASSIGN_OR_RETURN(const Model model, ModelOf(context.state, request.job()));
  NIBBLE_ASSIGN_OR_RETURN(
      const GemmCost cost,
      CostOf(timeline, model.outline, model.spec.data.sequence, model.spec.training.steps));
  v1::GetRecipeCostResponse response;
  v1::RecipeCost& ratios = *response.mutable_cost();
  ratios.set_fprop_ratio(cost.fprop);
  ratios.set_dgrad_ratio(cost.dgrad);
  ratios.set_wgrad_ratio(cost.wgrad);
  ratios.set_attention_ratio(cost.attention);
  ratios.set_total_ratio(cost.total());
  return response;
}

}  // namespace nibble
