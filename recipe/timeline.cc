#include "recipe/timeline.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Far below overflow.
constexpr int64_t kLargestNumber = int64_t{1} << 62;

// The selector of every layer.
constexpr std::string_view kAllLayers = "*";

}  // namespace

Recipe Normalised(const Recipe& recipe) {
  std::set<std::pair<std::string_view, std::string_view>> later;  // match and field
  // From the last to the first; the settings to keep, in order.
  const auto keep = [&later](const std::string& match, const std::vector<FieldSetting>& set) {
    std::vector<FieldSetting> kept;
    for (auto setting = set.rbegin(); setting != set.rend(); ++setting) {
      if (later.contains({kAllLayers, setting->field})) continue;
      if (later.insert({match, setting->field}).second) kept.push_back(*setting);
    }
    std::reverse(kept.begin(), kept.end());
    return kept;
  };
  Recipe normalised;
  normalised.preset = recipe.preset;
  for (auto rule = recipe.layers.rbegin(); rule != recipe.layers.rend(); ++rule) {
    std::vector<FieldSetting> kept = keep(rule->match, rule->set);
    if (kept.empty()) continue;
    std::vector<LayerRule>& rules = normalised.layers;
    if (!rules.empty() && rules.back().match == rule->match) {
      rules.back().set.insert(rules.back().set.begin(), kept.begin(), kept.end());
    } else {
      rules.push_back({rule->match, std::move(kept)});
    }
  }
  std::reverse(normalised.layers.begin(), normalised.layers.end());
  normalised.set = keep(std::string(kAllLayers), recipe.set);
  return normalised;
}

Recipe ApplyOver(const Recipe& base, const Recipe& change) {
  Recipe recipe = base;
  std::vector<FieldSetting> set;
  for (const FieldSetting& setting : change.set) {
    if (setting.field == kPresetField) {
      recipe.preset = setting.value;
    } else {
      set.push_back(setting);
    }
  }
  if (base.layers.empty()) {
    recipe.set.insert(recipe.set.end(), set.begin(), set.end());
  } else if (!set.empty()) {
    recipe.layers.push_back({std::string(kAllLayers), std::move(set)});
  }
  recipe.layers.insert(recipe.layers.end(), change.layers.begin(), change.layers.end());
  return Normalised(recipe);
}

Timeline::Timeline(Recipe initial) {
  Revision first;
  first.recipe = std::move(initial);
  revisions_.push_back(std::move(first));
}

absl::StatusOr<Timeline> Timeline::FromRevisions(std::vector<Revision> revisions,
                                                 std::vector<Promotion> promotions) {
  int64_t least_step = 0;
  for (size_t i = 0; i < revisions.size(); ++i) {
    const Revision& revision = revisions[i];
    const int64_t least_number = i == 0 ? 1 : revisions[i - 1].number + 1;
    if (revision.number < least_number || revision.number > kLargestNumber) {
      return absl::InvalidArgumentError(absl::StrCat("revisions[", i, "].number: ", revision.number,
                                                     "; allowed: ", least_number, " to ",
                                                     kLargestNumber));
    }
    if (!revision.refused.empty() && i == 0) {
      return absl::InvalidArgumentError(
          "revisions[0].refused: the first revision cannot be refused");
    }
    if (!(revision.lr_scale > 0 && revision.lr_scale <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "revisions[", i, "].lr_scale: ", revision.lr_scale, "; allowed: above 0, at most 1"));
    }
    if (!revision.refused.empty()) continue;
    if (revision.first_step < least_step || (i == 0 && revision.first_step != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("revisions[", i, "].first_step: ", revision.first_step,
                       "; allowed: ", least_step, i == 0 ? " only" : " or more"));
    }
    least_step = revision.first_step;
  }
  for (size_t i = 0; i < promotions.size(); ++i) {
    const Promotion& promotion = promotions[i];
    if (promotion.layers.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("promotions[", i, "].layers: is empty"));
    }
    if (promotion.first_step < 0 || promotion.end_step <= promotion.first_step) {
      return absl::InvalidArgumentError(
          absl::StrCat("promotions[", i, "]: steps ", promotion.first_step, " to before ",
                       promotion.end_step, "; allowed: from 0 on, at least one"));
    }
  }
  Timeline timeline;
  timeline.revisions_ = std::move(revisions);
  timeline.promotions_ = std::move(promotions);
  return timeline;
}

void Timeline::Promote(Promotion promotion) {
  std::erase_if(promotions_, [&promotion](const Promotion& other) {
    return other.end_step < promotion.first_step;
  });
  for (Promotion& other : promotions_) {
    if (other.layers != promotion.layers) continue;
    other.end_step = std::max(other.end_step, promotion.end_step);
    return;
  }
  promotions_.push_back(std::move(promotion));
}

std::vector<std::string> Timeline::WithdrawPromotions(int64_t first_step) {
  std::vector<std::string> layers;
  std::erase_if(promotions_, [&](const Promotion& promotion) {
    if (promotion.first_step != first_step) return false;
    layers.push_back(promotion.layers);
    return true;
  });
  return layers;
}

std::vector<std::string> Timeline::PromotedAt(int64_t step) const {
  std::vector<std::string> layers;
  for (const Promotion& promotion : promotions_) {
    if (promotion.first_step <= step && step < promotion.end_step) {
      layers.push_back(promotion.layers);
    }
  }
  return layers;
}

Recipe Timeline::RecipeAt(int64_t step) const {
  const Recipe& recipe = At(step).recipe;
  Recipe change;
  for (std::string& layers : PromotedAt(step)) {
    change.layers.push_back({std::move(layers), {{"all", "bf16"}}});
  }
  return change.layers.empty() ? recipe : ApplyOver(recipe, change);
}

const Revision& Timeline::At(int64_t step) const {
  static const Revision* const kNone = new Revision{.number = 0};
  if (revisions_.empty()) return *kNone;
  // From the end: usually the last one has begun.
  const auto begun =
      std::find_if(revisions_.rbegin(), revisions_.rend(),
                   [step](const Revision& r) { return r.refused.empty() && r.first_step <= step; });
  return begun == revisions_.rend() ? revisions_.front() : *begun;
}

int64_t Timeline::NextSwitchAfter(int64_t step) const {
  for (const Revision& revision : revisions_) {
    if (revision.refused.empty() && revision.first_step > step) return revision.first_step;
  }
  return -1;
}

std::vector<Revision>::iterator Timeline::Find(int64_t number) {
  return std::find_if(revisions_.begin(), revisions_.end(),
                      [number](const Revision& r) { return r.number == number; });
}

absl::Status Timeline::CheckTurn(int64_t expected_revision, int64_t first_step,
                                 int64_t next_step) const {
  if (revisions_.empty()) {
    return absl::FailedPreconditionError("timeline: there is no recipe to change yet");
  }
  if (expected_revision >= 0 && expected_revision != latest()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected_revision: ", expected_revision, " is not the latest, ", latest()));
  }
  if (first_step < next_step || first_step < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "first_step: ", first_step, " is in the past; allowed: ", std::max<int64_t>(next_step, 0),
        " (the next step) or later"));
  }
  return absl::OkStatus();
}

std::vector<Revision> Timeline::TakePendingAfter(int64_t step) {
  const auto first = std::stable_partition(
      revisions_.begin(), revisions_.end(),
      [step](const Revision& r) { return !r.refused.empty() || r.first_step <= step; });
  std::vector<Revision> pending(std::make_move_iterator(first),
                                std::make_move_iterator(revisions_.end()));
  revisions_.erase(first, revisions_.end());
  return pending;
}

absl::StatusOr<int64_t> Timeline::Append(int64_t expected_revision, const Recipe& change,
                                         int64_t first_step, int64_t next_step, std::string author,
                                         int64_t time_unix_ms, std::string reason) {
  NIBBLE_RETURN_IF_ERROR(CheckTurn(expected_revision, first_step, next_step));
  if (change.set.empty() && change.layers.empty()) {
    return absl::InvalidArgumentError("change: sets no field");
  }
  for (const LayerRule& rule : change.layers) {
    if (!rule.set.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("change: the rule for layers '", rule.match, "' sets no field"));
  }
  return Insert(change, first_step, std::move(author), time_unix_ms, std::move(reason));
}

absl::StatusOr<int64_t> Timeline::Repeat(int64_t first_step, int64_t next_step, std::string author,
                                         int64_t time_unix_ms, std::string reason) {
  NIBBLE_RETURN_IF_ERROR(CheckTurn(-1, first_step, next_step));
  return Insert(Recipe(), first_step, std::move(author), time_unix_ms, std::move(reason));
}

int64_t Timeline::Insert(const Recipe& change, int64_t first_step, std::string author,
                         int64_t time_unix_ms, std::string reason) {
  const int64_t number = latest() + 1;
  const double lr_scale = At(first_step).lr_scale;
  Recipe recipe = ApplyOver(At(first_step).recipe, change);
  std::vector<Revision> pending = TakePendingAfter(first_step);
  revisions_.push_back({.number = number,
                        .first_step = first_step,
                        .author = std::move(author),
                        .time_unix_ms = time_unix_ms,
                        .reason = std::move(reason),
                        .recipe = std::move(recipe),
                        .lr_scale = lr_scale});
  for (Revision& later : pending) {
    later.number = latest() + 1;
    later.recipe = ApplyOver(later.recipe, change);
    revisions_.push_back(std::move(later));
  }
  return number;
}

absl::Status Timeline::ScaleLearningRate(int64_t number, double lr_scale) {
  if (!(lr_scale > 0 && lr_scale <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr_scale: ", lr_scale, "; allowed: above 0, at most 1"));
  }
  const auto first = Find(number);
  if (first == revisions_.end()) {
    return absl::NotFoundError(
        absl::StrCat("revision: there is no ", number, "; the latest is ", latest()));
  }
  for (auto revision = first; revision != revisions_.end(); ++revision) {
    revision->lr_scale = lr_scale;
  }
  return absl::OkStatus();
}

absl::Status Timeline::Refuse(int64_t number, std::string reason) {
  if (reason.empty()) return absl::InvalidArgumentError("refused: no reason is given");
  const auto found = Find(number);
  if (found == revisions_.end()) {
    return absl::NotFoundError(
        absl::StrCat("revision: there is no ", number, "; the latest is ", latest()));
  }
  if (found == revisions_.begin()) {
    return absl::InvalidArgumentError(
        absl::StrCat("revision: ", number, " is the first, which cannot be refused"));
  }
  if (found->refused.empty()) found->refused = std::move(reason);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Timeline::Restore(int64_t expected_revision, int64_t number,
                                          int64_t first_step, int64_t next_step, std::string author,
                                          int64_t time_unix_ms, std::string reason) {
  const auto wanted = Find(number);
  if (wanted == revisions_.end()) {
    return absl::NotFoundError(
        absl::StrCat("revision: there is no ", number, "; the latest is ", latest()));
  }
  if (!wanted->refused.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision: ", number, " was refused (", wanted->refused,
                     ") and never took effect; to try its recipe again, set its fields again"));
  }
  return RestoreRecipe(expected_revision, wanted->recipe, wanted->lr_scale, first_step, next_step,
                       std::move(author), time_unix_ms, std::move(reason));
}

absl::StatusOr<int64_t> Timeline::RestoreRecipe(int64_t expected_revision, Recipe recipe,
                                                double lr_scale, int64_t first_step,
                                                int64_t next_step, std::string author,
                                                int64_t time_unix_ms, std::string reason) {
  NIBBLE_RETURN_IF_ERROR(CheckTurn(expected_revision, first_step, next_step));
  const int64_t restored = latest() + 1;
  TakePendingAfter(first_step);
  revisions_.push_back({.number = restored,
                        .first_step = first_step,
                        .author = std::move(author),
                        .time_unix_ms = time_unix_ms,
                        .reason = std::move(reason),
                        .recipe = std::move(recipe),
                        .lr_scale = lr_scale});
  return restored;
}

}  // namespace nibble
