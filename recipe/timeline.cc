#include "recipe/timeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// Far from where counting on would overflow.
constexpr int64_t kLargestNumber = int64_t{1} << 62;

}  // namespace

Recipe ApplyOver(const Recipe& base, const Recipe& change) {
  Recipe recipe = base;
  if (base.layers.empty()) {
    recipe.set.insert(recipe.set.end(), change.set.begin(), change.set.end());
  } else if (!change.set.empty()) {
    recipe.layers.push_back({"*", change.set});
  }
  recipe.layers.insert(recipe.layers.end(), change.layers.begin(), change.layers.end());
  return recipe;
}

Timeline::Timeline(Recipe initial) {
  Revision first;
  first.recipe = std::move(initial);
  revisions_.push_back(std::move(first));
}

absl::StatusOr<Timeline> Timeline::FromRevisions(std::vector<Revision> revisions) {
  for (size_t i = 0; i < revisions.size(); ++i) {
    const Revision& revision = revisions[i];
    const int64_t least_number = i == 0 ? 1 : revisions[i - 1].number + 1;
    const int64_t least_step = i == 0 ? 0 : revisions[i - 1].first_step;
    if (revision.number < least_number || revision.number > kLargestNumber) {
      return absl::InvalidArgumentError(absl::StrCat("revisions[", i, "].number: ", revision.number,
                                                     "; allowed: ", least_number, " to ",
                                                     kLargestNumber));
    }
    if (revision.first_step < least_step || (i == 0 && revision.first_step != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("revisions[", i, "].first_step: ", revision.first_step,
                       "; allowed: ", least_step, i == 0 ? " alone" : " and more"));
    }
  }
  Timeline timeline;
  timeline.revisions_ = std::move(revisions);
  return timeline;
}

const Revision& Timeline::At(int64_t step) const {
  static const Revision* const kNone = new Revision{.number = 0};
  if (revisions_.empty()) return *kNone;
  const auto after =
      std::upper_bound(revisions_.begin(), revisions_.end(), step,
                       [](int64_t at, const Revision& r) { return at < r.first_step; });
  return after == revisions_.begin() ? revisions_.front() : *(after - 1);
}

int64_t Timeline::NextSwitchAfter(int64_t step) const {
  for (const Revision& revision : revisions_) {
    if (revision.first_step > step) return revision.first_step;
  }
  return -1;
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
        "first_step: ", first_step, " lies in the past; allowed: ", std::max<int64_t>(next_step, 0),
        " (the next step) and later"));
  }
  return absl::OkStatus();
}

std::vector<Revision> Timeline::TakePendingAfter(int64_t step) {
  const auto first = std::find_if(revisions_.begin(), revisions_.end(),
                                  [step](const Revision& r) { return r.first_step > step; });
  std::vector<Revision> pending(std::make_move_iterator(first),
                                std::make_move_iterator(revisions_.end()));
  revisions_.erase(first, revisions_.end());
  return pending;
}

absl::StatusOr<int64_t> Timeline::Append(int64_t expected_revision, const Recipe& change,
                                         int64_t first_step, int64_t next_step, std::string author,
                                         int64_t time_unix_ms, std::string reason) {
  absl::Status status = CheckTurn(expected_revision, first_step, next_step);
  if (!status.ok()) return status;
  if (change.set.empty() && change.layers.empty()) {
    return absl::InvalidArgumentError("change: sets no field");
  }
  const int64_t number = latest() + 1;
  const Recipe recipe = ApplyOver(At(first_step).recipe, change);
  std::vector<Revision> pending = TakePendingAfter(first_step);
  revisions_.push_back(
      {number, first_step, std::move(author), time_unix_ms, std::move(reason), recipe});
  for (Revision& later : pending) {
    later.number = latest() + 1;
    later.recipe = ApplyOver(later.recipe, change);
    revisions_.push_back(std::move(later));
  }
  return number;
}

absl::StatusOr<int64_t> Timeline::Restore(int64_t expected_revision, int64_t number,
                                          int64_t first_step, int64_t next_step, std::string author,
                                          int64_t time_unix_ms, std::string reason) {
  absl::Status status = CheckTurn(expected_revision, first_step, next_step);
  if (!status.ok()) return status;
  const auto wanted = std::find_if(revisions_.begin(), revisions_.end(),
                                   [number](const Revision& r) { return r.number == number; });
  if (wanted == revisions_.end()) {
    return absl::NotFoundError(
        absl::StrCat("revision: there is no ", number, "; the latest is ", latest()));
  }
  const int64_t restored = latest() + 1;
  Recipe recipe = wanted->recipe;
  TakePendingAfter(first_step);
  revisions_.push_back({restored, first_step, std::move(author), time_unix_ms, std::move(reason),
                        std::move(recipe)});
  return restored;
}

}  // namespace nibble
