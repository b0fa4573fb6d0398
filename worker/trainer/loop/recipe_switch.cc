#include "worker/trainer/loop/recipe_switch.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/trainer/loop/run_errors.h"

namespace nibble {
namespace {

constexpr size_t kLongHistory = 64;  // revisions that have begun, or were refused

}  // namespace

absl::StatusOr<Timeline> AdoptTimeline(const Timeline& run, const Timeline& offered,
                                       int64_t next_step) {
  std::map<int64_t, Revision> adopted;  // by number
  int64_t known = 0;                    // the latest that has begun
  int64_t before = 0;                   // the one before it
  for (const Revision& revision : run.revisions()) {
    const bool begun = revision.refused.empty() && revision.first_step < next_step;
    if (begun) before = std::exchange(known, revision.number);
    if (begun || !revision.refused.empty()) adopted.emplace(revision.number, revision);
  }
  if (adopted.size() > kLongHistory && before > 0) {
    adopted.erase(adopted.begin(), adopted.find(before));
    adopted.begin()->second.first_step = 0;
  }
  int64_t earliest = next_step;
  for (const Revision& revision : offered.revisions()) {
    if (revision.number <= known) continue;
    const auto [at, added] = adopted.emplace(revision.number, revision);
    if (!added || !revision.refused.empty()) continue;
    earliest = std::max(earliest, revision.first_step);
    at->second.first_step = earliest;
  }
  std::vector<Revision> revisions;
  for (auto& [number, revision] : adopted) revisions.push_back(std::move(revision));
  return Timeline::FromRevisions(std::move(revisions), run.promotions());
}

int64_t RecipeSwitch::NextStep() const {
  return std::min(trainer_.next_step(), spec_.training.steps - 1);
}

void RecipeSwitch::Adopt(const JobControl::Boundary& boundary) {
  if (!boundary.timeline.has_value()) return;
  const int64_t next = trainer_.next_step();
  absl::StatusOr<Timeline> adopted = *boundary.timeline;
  if (adopted.ok()) adopted = AdoptTimeline(trainer_.timeline(), *adopted, next);
  // An invalid timeline has no revision that could be marked as refused.
  if (!adopted.ok()) {
    return ReportRefusal(boundary.revision, std::string(adopted.status().message()));
  }
  trainer_.timeline() = *std::move(adopted);
  const std::vector<Revision> revisions = trainer_.timeline().revisions();
  // The first is never refused: a run that cannot use it ends when it prepares it.
  for (size_t i = 1; i < revisions.size(); ++i) {
    if (!revisions[i].refused.empty() || revisions[i].first_step < next) continue;
    const absl::Status fits = trainer_.CheckRecipe(revisions[i].recipe);
    if (!fits.ok()) Refuse(revisions[i].number, std::string(fits.message()));
  }
}

absl::Status RecipeSwitch::Prepare() {
  while (Next().number != prepared_ || trainer_.timeline().PromotedAt(NextStep()) != promoted_) {
    const int64_t number = Next().number;
    const int64_t first_step = Next().first_step;
    const absl::Status mine = NameBound(spec_, trainer_.PrepareRecipe());
    NIBBLE_ASSIGN_OR_RETURN(const std::string refusal, control_.AgreeOn(mine));
    prepared_ = number;
    promoted_ = trainer_.timeline().PromotedAt(NextStep());
    if (refusal.empty()) {
      status_.SetProducts(ProductsOf(trainer_, trainer_.next_step()));
      return absl::OkStatus();
    }
    const std::vector<std::string> withdrawn =
        trainer_.timeline().WithdrawPromotions(trainer_.next_step());
    if (!withdrawn.empty()) {
      prepared_ = 0;  // the recipe without them must be prepared again
      reporter_.Notice(trainer_.next_step(),
                       absl::StrCat("promotion to BF16 withdrawn, ", absl::StrJoin(withdrawn, ", "),
                                    " under revision ", number, ": ", refusal));
      continue;
    }
    const int64_t first = trainer_.timeline().revisions().front().number;
    if (first_step < trainer_.next_step() || number == first) {
      return mine.ok() ? absl::FailedPreconditionError(
                             absl::StrCat("recipe revision ", number, ": ", refusal))
                       : mine;
    }
    prepared_ = 0;  // the revision that stays in effect must be prepared again
    Refuse(number, refusal);
  }
  return absl::OkStatus();
}

void RecipeSwitch::Begin() {
  const Revision& revision = trainer_.timeline().At(trainer_.next_step());
  if (!status_.AddRevision(revision.number, revision.first_step)) return;
  status_.Send(link::v1::RANK_ACTIVITY_STEPS, trainer_.next_step(), reporter_.trouble());
}

void RecipeSwitch::Refuse(int64_t revision, const std::string& reason) {
  // Cannot fail: the revision exists and is not the first.
  (void)trainer_.timeline().Refuse(revision, reason);
  ReportRefusal(revision, reason);
}

void RecipeSwitch::ReportRefusal(int64_t revision, const std::string& reason) {
  reporter_.Notice(trainer_.next_step(),
                   absl::StrCat("recipe revision ", revision, " refused, revision ", Next().number,
                                " stays in effect: ", reason));
  status_.AddRefusal(revision, reason);
  status_.Send(status_.report().activity(), trainer_.next_step(), reporter_.trouble());
}

}  // namespace nibble
