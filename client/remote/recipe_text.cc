#include "client/remote/recipe_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/remote/recipe_message.h"
#include "client/remote/text.h"

namespace nibble {

std::string RevisionText(const v1::GetRecipeResponse& response) {
  const v1::RecipeRevision& revision = response.revision();
  TextList list;
  list.Add("revision",
           absl::StrCat(revision.number(), "; the latest is ", response.latest_revision()));
  list.Add("from step", absl::StrCat(revision.first_step(),
                                     revision.confirmed() ? ", exactly: ranks have run it" : ""));
  list.Add("recipe", RecipeText(revision.recipe()));
  if (!revision.author().empty()) {
    list.Add("by",
             absl::StrCat(revision.author(), ", ", TimeText(revision.time_unix_ms()), " UTC"));
  }
  if (!revision.reason().empty()) list.Add("reason", revision.reason());
  if (!revision.refused().empty()) list.Add("refused", revision.refused());
  return response.table().empty() ? list.Text() : absl::StrCat(list.Text(), "\n", response.table());
}

std::string HistoryTable(const google::protobuf::RepeatedPtrField<v1::RecipeRevision>& revisions) {
  TextTable table({"REVISION", "FROM STEP", "RUN", "BY", "WHEN (UTC)", "RECIPE", "REASON"});
  for (const v1::RecipeRevision& revision : revisions) {
    const bool refused = !revision.refused().empty();
    table.Add({absl::StrCat(revision.number()), absl::StrCat(revision.first_step()),
               revision.confirmed() ? "yes"
               : refused            ? "refused"
                                    : "no",
               revision.author(), TimeText(revision.time_unix_ms()),
               Fit(RecipeText(revision.recipe()), 80),
               refused ? absl::StrCat("refused: ", revision.refused()) : revision.reason()});
  }
  return table.Text();
}

std::string DifferencesText(
    const google::protobuf::RepeatedPtrField<v1::RecipeDifference>& differences) {
  constexpr int kNamed = 3;
  if (differences.empty()) return "  no difference\n";
  std::string text;
  for (const v1::RecipeDifference& difference : differences) {
    absl::StrAppend(&text, "  ", difference.field(), ": ", difference.from(), " → ",
                    difference.to(), " in ", difference.layers_size(),
                    difference.layers_size() == 1 ? " layer: " : " layers: ");
    for (int i = 0; i < std::min(difference.layers_size(), kNamed); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", difference.layers(i));
    }
    absl::StrAppend(&text, difference.layers_size() > kNamed ? ", …\n" : "\n");
  }
  return text;
}

std::string CostTable(const v1::RecipeCost& cost) {
  const struct {
    const char* name;
    double ratio;
  } rows[] = {{"fprop", cost.fprop_ratio()},
              {"dgrad", cost.dgrad_ratio()},
              {"wgrad", cost.wgrad_ratio()},
              {"attention", cost.attention_ratio()},
              {"total", cost.total_ratio()}};
  TextTable table({"PRODUCT", "SHARE OF ALL TIME IN 16 BIT"});
  for (const auto& [name, ratio] : rows) {
    table.Add({name, absl::StrFormat("%.1f%%", 100 * ratio)});
  }
  return table.Text();
}

}  // namespace nibble
