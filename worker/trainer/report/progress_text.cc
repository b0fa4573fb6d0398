#include "worker/trainer/report/progress_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nibble {
namespace {

constexpr size_t kLeastBar = 7;  // with its brackets
constexpr size_t kMostBar = 32;
constexpr size_t kMostRecipe = 24;

double Share(const ProgressState& state) {
  if (state.steps <= 0) return 0;
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.steps), 0.0, 1.0);
}

// "99%" until all is done.
std::string Percent(const ProgressState& state) {
  return absl::StrFormat("%d%%", static_cast<int>(std::floor(100 * Share(state))));
}

std::string Bar(double share, size_t width) {
  const size_t inside = width - 2;
  const auto full = static_cast<size_t>(share * static_cast<double>(inside));
  std::string bar = "[" + std::string(full, '=');
  if (full < inside) bar += '>';
  bar.resize(1 + inside, ' ');
  return bar + "]";
}

std::string Printable(std::string_view text) {
  std::string safe(text.substr(0, kMostRecipe));
  for (char& c : safe) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return safe;
}

struct Part {
  std::string text;
  int importance;  // 0 stays to the last
  size_t gap = 2;  // blanks before it
  bool shown = false;

  size_t width() const { return gap + text.size(); }
};

// In the order in which they stand; the bar goes before the second.
std::vector<Part> Parts(const ProgressState& state) {
  std::vector<Part> parts = {{absl::StrFormat("%d/%d", state.done, state.steps), 0, 0},
                             {Percent(state), 4, 1}};
  if (state.loss) parts.push_back({absl::StrFormat("loss %.4f", *state.loss), 1});
  if (state.validation_loss) {
    parts.push_back({absl::StrFormat("val %.4f", *state.validation_loss), 5});
  }
  if (state.tokens_per_second > 0) {
    parts.push_back({absl::StrCat(ShortCount(state.tokens_per_second), " tok/s"), 3});
  }
  if (state.eta_seconds >= 0) {
    parts.push_back({absl::StrCat("eta ", ShortDuration(state.eta_seconds)), 2});
  }
  if (state.skipped > 0) parts.push_back({absl::StrCat("skipped ", state.skipped), 1});
  if (state.revision > 0) parts.push_back({absl::StrCat("r", state.revision), 6});
  if (!state.recipe.empty()) parts.push_back({Printable(state.recipe), 7, 1});
  return parts;
}

}  // namespace

std::string ShortCount(double value) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  // 999.5 would be written as 1000.
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f%s", digits, value, kUnits[unit]);
}

std::string ShortDuration(double seconds) {
  constexpr double kMost = 999.0 * 86400;
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, kMost)));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole / 3600 % 24);
}

std::string RenderBar(const ProgressState& state, int columns) {
  const size_t width = columns > 0 ? static_cast<size_t>(columns) : 0;
  std::vector<Part> parts = Parts(state);
  size_t used = parts[0].width();
  if (used > width) return parts[0].text.substr(0, width);
  // By importance, until one does not fit: no lesser one takes its place.
  std::vector<Part*> wanted;
  for (size_t i = 1; i < parts.size(); ++i) wanted.push_back(&parts[i]);
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const Part* a, const Part* b) { return a->importance < b->importance; });
  for (Part* part : wanted) {
    if (used + part->width() > width) break;
    part->shown = true;
    used += part->width();
  }
  std::string out = parts[0].text;
  if (used + 1 + kLeastBar <= width) {
    absl::StrAppend(&out, " ", Bar(Share(state), std::min(kMostBar, width - used - 1)));
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].shown) absl::StrAppend(&out, std::string(parts[i].gap, ' '), parts[i].text);
  }
  return out;
}

std::string RenderLine(const ProgressState& state) {
  std::string out = absl::StrCat("step ", state.done, "/", state.steps, " (", Percent(state), ")");
  if (state.loss) absl::StrAppendFormat(&out, "  loss %.4f", *state.loss);
  if (state.validation_loss) absl::StrAppendFormat(&out, "  val %.4f", *state.validation_loss);
  absl::StrAppendFormat(&out, "  lr %.4g", state.learning_rate);
  if (state.tokens_per_second > 0) {
    absl::StrAppend(&out, "  ", ShortCount(state.tokens_per_second), " tok/s");
  }
  if (state.eta_seconds >= 0) absl::StrAppend(&out, "  eta ", ShortDuration(state.eta_seconds));
  if (state.revision > 0) {
    absl::StrAppend(&out, "  recipe r", state.revision, " ", Printable(state.recipe));
  }
  if (state.skipped > 0) absl::StrAppend(&out, "  skipped ", state.skipped);
  return out;
}

}  // namespace nibble
