// The parts of the display with the figures of a step, of ranks and of precision.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/remote/watch_sections.h"
#include "common/counted.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr int kShownOperands = 3;
constexpr size_t kMostSplit = 80;   // columns of the bar of a step's parts
constexpr size_t kLeastSplit = 40;  // with fewer, the shares of large parts would not fit into it
constexpr double kSlowRank = 1.1;   // from here on, times the median, the slowest rank is marked
// From here on figures of an operand stand out; healthy runs in NVFP4 have a fifth.
constexpr double kManyClipped = 0.5;
constexpr double kMuchUnderflow = 0.5;
constexpr size_t kMostRankBars = 40;

std::string SecondsText(double seconds) {
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1000);
  return seconds < 100 ? absl::StrFormat("%.2f s", seconds) : DurationText(seconds);
}

// Small shares keep a digit that tells them from 0.
std::string ShareText(double share) {
  const double percent = share * 100;
  if (percent == 0) return "0%";
  if (percent < 0.01) return "<0.01%";
  return absl::StrFormat("%.*f%%", percent < 1 ? 2 : 1, percent);
}

// A part of a step, and its names from the longest on.
struct StepPart {
  double seconds;
  const char* name;
  const char* short_name;
  char letter;
  Ink ink;
};

// A character per rank, or per several ranks if there are more than `columns`: the longest work.
std::string RankBars(const std::vector<v1::RankPace>& ranks, double most, size_t columns,
                     bool utf8) {
  constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t shown = std::min(ranks.size(), columns);
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    double work = 0;
    for (size_t r = i * ranks.size() / shown; r < (i + 1) * ranks.size() / shown; ++r) {
      work = std::max(work, ranks[r].work_seconds());
    }
    const double share = most > 0 ? work / most : 0;
    if (utf8) {
      text += kBars[static_cast<size_t>(std::lround(share * 7))];
    } else {
      text += static_cast<char>('0' + std::lround(share * 9));
    }
  }
  return text;
}

struct PrecisionWords {
  const char *error, *underflow, *clipped;
};

// Abbreviated until it fits.
StyledLine PrecisionHead(const v1::PrecisionSummary& all, size_t columns) {
  const auto with = [&all](const PrecisionWords& words, const std::string& begin, bool count) {
    StyledLine line(begin);
    if (all.operands() > 0) {
      line.Add(absl::StrCat(words.error, " ", ShareText(all.mean_relative_error())));
      line.Add(", ").Add(absl::StrCat(words.underflow, " ", ShareText(all.most_underflow())),
                         all.most_underflow() > kMuchUnderflow ? Ink::kYellow : Ink::kPlain);
      line.Add(", ").Add(absl::StrCat(words.clipped, " ", ShareText(all.most_clipped())),
                         all.most_clipped() > kManyClipped ? Ink::kYellow : Ink::kPlain);
    }
    const char* between = all.operands() > 0 ? ", " : "";
    if (all.non_finite() > 0) {
      line.Add(between).Add(absl::StrCat(Counted(all.non_finite(), "value"), " not finite"),
                            Ink::kRed);
      between = ", ";
    }
    if (count) line.Add(absl::StrCat(between, Counted(all.operands(), "operand")));
    return line;
  };
  const std::string step = absl::StrCat("precision step ", all.step(), ": ");
  const PrecisionWords whole = {"mean error", "max underflow", "max clipped"};
  return FirstFitting({with(whole, step, true), with(whole, step, all.operands() == 0),
                       with({"error", "underflow", "clipped"}, step, all.operands() == 0),
                       with({"err", "under", "clip"}, "precision ", all.operands() == 0)},
                      columns);
}

std::string OperandName(const v1::OperandPrecision& operand, bool with_format) {
  std::string text = absl::StrCat(operand.layer(), " ", operand.operand());
  // Of "nvfp4 1x16 stochastic" the name of the format.
  const std::string& format = operand.format();
  if (with_format) absl::StrAppend(&text, " ", format.substr(0, format.find(' ')));
  return text;
}

StyledLine NotFinite(const v1::OperandPrecision& operand) {
  if (operand.non_finite() == 0) return StyledLine();
  return StyledLine(absl::StrCat("  ", operand.non_finite(), " not finite"), Ink::kRed);
}

// One line for each of the worst operands.
std::vector<StyledLine> WorstLines(const v1::PrecisionSummary& all, bool with_format) {
  const int shown = std::min(all.worst_size(), kShownOperands);
  size_t name_columns = 0;
  for (int i = 0; i < shown; ++i) {
    name_columns = std::max(name_columns, WidthOf(OperandName(all.worst(i), with_format)));
  }
  std::vector<StyledLine> lines;
  for (int i = 0; i < shown; ++i) {
    const v1::OperandPrecision& operand = all.worst(i);
    const std::string text = OperandName(operand, with_format);
    StyledLine line(absl::StrCat("  ", text, std::string(name_columns - WidthOf(text), ' ')));
    line.Add(absl::StrFormat("  err %6s  under %6s  clip %6s", ShareText(operand.relative_error()),
                             ShareText(operand.underflow()), ShareText(operand.clipped())));
    lines.push_back(line.Append(NotFinite(operand)));
  }
  return lines;
}

// A table that is narrow at the cost of a line: the name of an operand, then its figures.
PrecisionView NarrowPrecision(const v1::PrecisionSummary& all) {
  PrecisionView view;
  view.lines.emplace_back(absl::StrFormat("precision%7s%7s%7s", "err", "under", "clip"));
  StyledLine overall(absl::StrFormat("  overall%7s", ShareText(all.mean_relative_error())));
  overall.Add(absl::StrFormat("%7s", ShareText(all.most_underflow())),
              all.most_underflow() > kMuchUnderflow ? Ink::kYellow : Ink::kPlain);
  overall.Add(absl::StrFormat("%7s", ShareText(all.most_clipped())),
              all.most_clipped() > kManyClipped ? Ink::kYellow : Ink::kPlain);
  view.lines.push_back(overall);
  if (all.non_finite() > 0) {
    view.lines.emplace_back(absl::StrCat("  ", Counted(all.non_finite(), "value"), " not finite"),
                            Ink::kRed);
  }
  view.ends.push_back(view.lines.size());
  for (int i = 0; i < std::min(all.worst_size(), kShownOperands); ++i) {
    const v1::OperandPrecision& operand = all.worst(i);
    view.lines.emplace_back(absl::StrCat("  ", OperandName(operand, false)));
    view.lines.emplace_back(absl::StrFormat("%16s%7s%7s", ShareText(operand.relative_error()),
                                            ShareText(operand.underflow()),
                                            ShareText(operand.clipped())));
    if (operand.non_finite() > 0) view.lines.push_back(NotFinite(operand));
    view.ends.push_back(view.lines.size());
  }
  return view;
}

// The parts of a step as text, the largest first, in as many lines as they need.
std::vector<StyledLine> SplitAsText(StyledLine line, std::vector<StepPart> parts, double whole,
                                    size_t columns) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const StepPart& a, const StepPart& b) { return a.seconds > b.seconds; });
  std::vector<StyledLine> lines;
  for (const StepPart& part : parts) {
    const double share = part.seconds / whole;
    if (share < 0.005) break;
    const std::string text = absl::StrFormat("%s %.0f%%", part.short_name, share * 100);
    if (line.width() > kNameColumns && line.width() + 2 + text.size() > columns) {
      lines.push_back(line);
      line = StyledLine(std::string(kNameColumns, ' '));
    } else if (line.width() > kNameColumns) {
      line.Add("  ");
    }
    line.Add(text, part.ink);
  }
  lines.push_back(line);
  return lines;
}

}  // namespace

std::vector<StyledLine> StepLines(const WatchState& state, const LineFormat& format) {
  const std::optional<v1::StepSample> mean = state.mean_step();
  if (!mean || mean->step_seconds() <= 0) return {};
  StyledLine line("step      ");
  line.Add(SecondsText(mean->step_seconds()), Ink::kStrong);
  std::vector<StepPart> parts = {
      {mean->data_seconds(), "data wait", "data", 'd', Ink::kRed},
      {mean->weights_seconds(), "weights", "weights", 'w', Ink::kBlue},
      {mean->forward_seconds(), "forward", "fwd", 'f', Ink::kGreen},
      {mean->backward_seconds(), "backward", "bwd", 'b', Ink::kCyan},
      {mean->reduce_seconds(), "communication wait", "comm", 'c', Ink::kYellow},
      {mean->update_seconds(), "optimizer", "opt", 'o', Ink::kMagenta},
  };
  double sum = 0;
  for (const StepPart& part : parts) sum += part.seconds;
  if (sum <= 0) return {line.Add("  its parts are unknown", Ink::kFaint)};
  // The optimizer may run beside other parts, so the parts can add up to more than the step.
  parts.push_back({std::max(0.0, mean->step_seconds() - sum), "other", "other", '.', Ink::kFaint});
  const double whole = std::max(sum, mean->step_seconds());
  if (format.columns < line.width() + 3 + kLeastSplit) {
    return SplitAsText(line, parts, whole, format.columns);
  }
  line.Add("  ");
  const size_t used = line.width() + 1;
  const size_t bar = std::min(kMostSplit, format.columns - used);
  const std::string border = format.utf8 ? "│" : "|";
  double done = 0;
  size_t column = 0;
  for (const StepPart& part : parts) {
    done += part.seconds;
    const auto end = static_cast<size_t>(std::lround(done / whole * static_cast<double>(bar)));
    if (end <= column) continue;
    size_t left = end - column - 1;
    column = end;
    line.Add(border, Ink::kFaint);
    const std::string share = absl::StrFormat("%.0f%%", part.seconds / whole * 100);
    for (const std::string& text :
         {absl::StrCat(part.name, " ", share), absl::StrCat(part.short_name, " ", share),
          std::string(part.short_name), std::string(1, part.letter)}) {
      if (text.size() > left) continue;
      line.Add(text, part.ink);
      left -= text.size();
      break;
    }
    for (; left > 0; --left) line.Add(format.utf8 ? "·" : ".", part.ink);
  }
  return {line.Add(border, Ink::kFaint)};
}

std::vector<StyledLine> RankLines(const WatchState& state, const LineFormat& format) {
  const std::vector<v1::RankPace>& ranks = state.ranks();
  if (ranks.size() < 2) return {};
  const auto slowest = std::max_element(ranks.begin(), ranks.end(),
                                        [](const v1::RankPace& a, const v1::RankPace& b) {
                                          return a.work_seconds() < b.work_seconds();
                                        });
  if (slowest->work_seconds() <= 0) return {};
  std::vector<double> work;
  for (const v1::RankPace& rank : ranks) work.push_back(rank.work_seconds());
  const auto middle = work.begin() + static_cast<std::ptrdiff_t>(work.size() / 2);
  std::nth_element(work.begin(), middle, work.end());
  // Of an even number of ranks the lower of the two in the middle, so that of two ranks the slower
  // one stands out.
  const double median = work.size() % 2 == 0 ? *std::max_element(work.begin(), middle) : *middle;
  const double ratio = median > 0 ? slowest->work_seconds() / median : 1;
  const bool slow = ratio >= kSlowRank;
  const std::string sign = slow ? "! " : "  ";
  const std::string above = absl::StrFormat(" (%+.0f%%)", (ratio - 1) * 100);
  const std::string who = absl::StrCat("rank ", slowest->rank(), " on ", slowest->worker());
  StyledLine line("ranks     ");
  const std::vector<StyledLine> texts = {
      StyledLine(absl::StrCat(sign, "slowest: ", who, ", ", SecondsText(slowest->work_seconds()),
                              " of work, median ", SecondsText(median), above)),
      StyledLine(absl::StrCat(sign, "slowest: ", who, above)),
      StyledLine(absl::StrCat(sign, "rank ", slowest->rank(), above))};
  const size_t bars = std::min<size_t>(ranks.size(), 2) + 1;
  const size_t least = line.width() + bars;
  const std::string text =
      FirstFitting(texts, format.columns > least ? format.columns - least : 0).Text(false);
  const size_t used = line.width() + WidthOf(text) + 1;
  const size_t room = format.columns > used ? format.columns - used : 0;
  line.Add(RankBars(ranks, slowest->work_seconds(), std::min(room, kMostRankBars), format.utf8),
           Ink::kCyan);
  return {line.Add(" ").Add(text, slow ? Ink::kYellow : Ink::kPlain)};
}

PrecisionView PrecisionLines(const WatchState& state, const LineFormat& format) {
  if (!state.precision()) return {};
  const v1::PrecisionSummary& all = *state.precision();
  for (const bool with_format : {true, false}) {
    PrecisionView view = {.lines = {PrecisionHead(all, format.columns)}, .ends = {1}};
    for (StyledLine& line : WorstLines(all, with_format)) {
      view.lines.push_back(std::move(line));
      view.ends.push_back(view.lines.size());
    }
    const bool fits = std::all_of(view.lines.begin(), view.lines.end(),
                                  [&](const auto& line) { return line.width() <= format.columns; });
    if (fits || all.operands() == 0) return view;
  }
  return NarrowPrecision(all);
}

}  // namespace nibble
