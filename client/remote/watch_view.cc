#include "client/remote/watch_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/remote/curve_plot.h"
#include "client/remote/recipe_strip.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr size_t kLeastPlotColumns = 28;  // inside of the axes
constexpr size_t kLeastPlotLines = 9;     // with its axes and the strips under it
constexpr size_t kGoodPlotLines = 14;
constexpr size_t kMostPlotLines = 30;
constexpr size_t kFirstEventLines = 2;
constexpr size_t kManyEventLines = 12;
// The fall of the loss at the beginning would flatten the rest of the curve: from this number of
// buckets on, the first share of the shown steps does not count for the top of the y axis.
constexpr size_t kManyBuckets = 40;
constexpr double kInitialShare = 0.05;
constexpr double kYMargin = 0.02;

// The plot of losses, and what lies under it to the same scale.
class LossPlot {
 public:
  LossPlot(const WatchState& state, const WatchOptions& options, const ViewStyle& style,
           size_t columns)
      : state_(state), options_(options), style_(style) {
    const std::vector<LossBucket>& buckets = state.losses().buckets();
    if (buckets.empty() || columns < kNameColumns + kLeastPlotColumns) return;
    if (options.tokens && state.job().shape().tokens_per_step() > 0) {
      x_per_step_ = static_cast<double>(state.job().shape().tokens_per_step());
      area_.x_name = "tokens";
    }
    area_.columns = columns - kNameColumns;
    area_.margin = kNameColumns;
    area_.utf8 = style.utf8;
    const int64_t steps = state.job().shape().steps();
    const int64_t first = options.planned ? 0 : buckets.front().first_step;
    const int64_t end = std::max(options.planned ? steps : state.next_step(),
                                 std::max(buckets.back().last_step, first + 1));
    area_.x_from = static_cast<double>(first) * x_per_step_;
    area_.x_to = static_cast<double>(end) * x_per_step_;
    AddCurves(static_cast<double>(end - first));
    drawn_ = SetYRange();
    AddMarks();
  }

  // Whether there is something to draw and room for its width.
  bool drawn() const { return drawn_; }

  // `room` is at least kLeastPlotLines.
  std::vector<StyledLine> Lines(size_t room) const {
    PlotArea area = area_;
    area.rows = room - 2 - 1 - (marks_.empty() ? 0 : 1);
    std::vector<StyledLine> lines = DrawPlot(curves_, area);
    lines.push_back(
        RecipeStrip(EffectiveRevisions(state_.revisions()), state_.bits(), area, x_per_step_));
    if (marks_.empty()) return lines;
    StyledLine line("marks     ");
    for (const char mark : marks_) {
      line.Add(std::string(1, mark), mark == 'c' ? Ink::kGreen : Ink::kRed);
    }
    lines.push_back(line);
    return lines;
  }

 private:
  void AddCurves(double shown_steps) {
    const bool smooth = options_.smoothing != Smoothing::kNone;
    PlotCurve raw = {.ink = smooth ? Ink::kFaint : Ink::kGreen, .ascii = smooth ? '.' : '*'};
    for (const LossBucket& bucket : state_.losses().buckets()) {
      if (bucket.finite == 0) continue;
      raw.points.push_back({bucket.centre() * x_per_step_, bucket.least, bucket.most});
    }
    const double window =
        smooth ? shown_steps / (options_.smoothing == Smoothing::kStrong ? 15 : 100) : 0;
    const auto smoothed = [&](const LossHistory& losses) {
      std::vector<PlotPoint> points;
      for (const LossPoint& point : SmoothedLosses(losses, window)) {
        points.push_back({point.step * x_per_step_, point.loss, point.loss});
      }
      return points;
    };
    // Dots of the smoothed and the raw losses cannot be told apart without colours.
    if (!smooth || style_.colours) curves_.push_back(std::move(raw));
    if (options_.reference && !state_.reference_losses().buckets().empty()) {
      curves_.push_back({.points = smoothed(state_.reference_losses()),
                         .ink = Ink::kYellow,
                         .ascii = 'o',
                         .dashed = !style_.colours});
    }
    if (smooth) {
      curves_.push_back({.points = smoothed(state_.losses()), .ink = Ink::kGreen, .ascii = '*'});
    }
  }

  // False without a point to draw.
  bool SetYRange() {
    const bool settled = state_.losses().buckets().size() >= kManyBuckets;
    const double counts_from =
        area_.x_from + (settled ? kInitialShare * (area_.x_to - area_.x_from) : 0);
    double least = HUGE_VAL, most = -HUGE_VAL;
    for (const PlotCurve& curve : curves_) {
      for (const PlotPoint& point : curve.points) {
        if (point.x < area_.x_from || point.x > area_.x_to) continue;
        least = std::min(least, point.least);
        if (point.x >= counts_from) most = std::max(most, point.most);
      }
    }
    if (!std::isfinite(least)) return false;
    if (!(most > least)) most = least + std::max(0.1, std::abs(least) * 0.1);
    area_.log = options_.log && least > 0;
    const double margin = kYMargin * (most - least);
    area_.y_from = area_.log ? least * 0.99 : least - margin;
    area_.y_to = area_.log ? most * 1.01 : most + margin;
    return true;
  }

  // One sign per column; the more important ones replace others.
  void AddMarks() {
    std::string row(area_.columns, ' ');
    bool any = false;
    const auto set = [&](int64_t step, char sign) {
      const double x = static_cast<double>(step) * x_per_step_;
      if (x < area_.x_from || x > area_.x_to) return;
      row[PlotColumn(area_, x)] = sign;
      any = true;
    };
    for (const char sign : {'c', 'R', 'g'}) {
      for (const StepMark& mark : state_.marks()) {
        if (mark.sign == sign) set(mark.step, sign);
      }
    }
    for (const LossBucket& bucket : state_.losses().buckets()) {
      if (bucket.skipped > 0) set(bucket.last_step, 'g');
      if (bucket.non_finite > 0) set(bucket.last_step, '!');
    }
    if (any) marks_ = row;
  }

  const WatchState& state_;
  const WatchOptions& options_;
  const ViewStyle& style_;
  PlotArea area_;
  double x_per_step_ = 1;
  std::vector<PlotCurve> curves_;
  std::string marks_;  // empty: none
  bool drawn_ = false;
};

// The parts of the view, in the order of the screen.
enum Part {
  kHeadPart,
  kReasonPart,
  kPlotPart,
  kRecipePart,
  kStepPart,
  kRanksPart,
  kPrecisionPart,
  kAttemptPart,
  kEventsPart,
  kParts
};

// How many lines of each part are shown.
class Shares {
 public:
  explicit Shares(size_t room) : room_(room) {}

  // Gives the part up to `lines` in all, as far as there is room.
  void Grow(Part part, size_t lines) {
    const size_t more = std::min(room_, lines > shown_[part] ? lines - shown_[part] : 0);
    shown_[part] += more;
    room_ -= more;
  }
  // Gives the part `lines`, if there is room for all of them.
  void GrowWhole(Part part, size_t lines) {
    if (lines <= shown_[part] + room_) Grow(part, lines);
  }
  size_t operator[](Part part) const { return shown_[part]; }

 private:
  size_t room_;
  std::array<size_t, kParts> shown_ = {};
};

}  // namespace

bool WatchOptions::Switch(char key) {
  switch (key) {
    case 'r':
      reference = !reference;
      return true;
    case 'l':
      log = !log;
      return true;
    case 's':
      smoothing = smoothing == Smoothing::kLight    ? Smoothing::kStrong
                  : smoothing == Smoothing::kStrong ? Smoothing::kNone
                                                    : Smoothing::kLight;
      return true;
    case 't':
      tokens = !tokens;
      return true;
    case 'w':
      planned = !planned;
      return true;
    case '?':
      help = !help;
      return true;
    default:
      return false;
  }
}

std::vector<StyledLine> RenderWatch(const WatchState& state, const WatchOptions& options,
                                    const ViewStyle& style, int64_t now_unix_ms,
                                    const std::string& note) {
  const auto columns = static_cast<size_t>(std::max(1, style.columns - 1));
  const auto rows = static_cast<size_t>(std::max(2, style.rows - 1));
  const size_t room = rows - (note.empty() ? 0 : 1);
  const LineFormat format = {.columns = columns, .utf8 = style.utf8};
  const LossPlot plot(state, options, style, columns);
  std::array<std::vector<StyledLine>, kParts> parts;
  parts[kReasonPart] = ReasonLines(state, format);
  parts[kRecipePart] = RecipeLines(state, format);
  parts[kStepPart] = StepLines(state, format);
  parts[kRanksPart] = RankLines(state, format);
  PrecisionView precision = PrecisionLines(state, format);
  parts[kPrecisionPart] = std::move(precision.lines);
  AttemptView attempt = AttemptLines(state, format);
  parts[kAttemptPart] = std::move(attempt.lines);

  // First what each part needs, by importance; then what it would like to have.
  Shares shares(room);
  shares.Grow(kHeadPart, 3);
  shares.Grow(kReasonPart, parts[kReasonPart].size());
  shares.Grow(kRecipePart, parts[kRecipePart].size());
  shares.Grow(kAttemptPart, std::min(parts[kAttemptPart].size(), 1 + attempt.troubled));
  if (plot.drawn() && !options.help) shares.GrowWhole(kPlotPart, kLeastPlotLines);
  shares.Grow(kStepPart, parts[kStepPart].size());
  if (!precision.ends.empty()) shares.GrowWhole(kPrecisionPart, precision.ends.front());
  const size_t events = EventLines(state, format, kManyEventLines).size();
  shares.Grow(kEventsPart, std::min(events, kFirstEventLines));
  shares.Grow(kRanksPart, parts[kRanksPart].size());
  for (const size_t end : precision.ends) shares.GrowWhole(kPrecisionPart, end);
  if (shares[kPlotPart] > 0) shares.Grow(kPlotPart, kGoodPlotLines);
  shares.Grow(kAttemptPart, parts[kAttemptPart].size());
  shares.Grow(kEventsPart, events);
  if (shares[kPlotPart] > 0) shares.Grow(kPlotPart, kMostPlotLines);

  parts[kHeadPart] = {HeadLine(state, now_unix_ms, columns, style.keys),
                      ProgressLine(state, columns),
                      LossLine(state, format, shares[kPlotPart] == 0, options.reference)};
  if (shares[kPlotPart] > 0) parts[kPlotPart] = plot.Lines(shares[kPlotPart]);
  parts[kEventsPart] = EventLines(state, format, shares[kEventsPart]);
  if (options.help) {
    parts = {};
    parts[kHeadPart] = HelpLines(style.utf8);
  }
  std::vector<StyledLine> lines;
  for (size_t part = 0; part < kParts; ++part) {
    const size_t shown = options.help
                             ? parts[part].size()
                             : std::min(parts[part].size(), shares[static_cast<Part>(part)]);
    lines.insert(lines.end(), parts[part].begin(),
                 parts[part].begin() + static_cast<std::ptrdiff_t>(shown));
  }
  if (lines.size() > room) lines.resize(room);
  if (!note.empty()) lines.emplace_back(note, Ink::kYellow);
  for (StyledLine& line : lines) {
    if (!style.utf8) line.FoldToAscii();
    line.Cut(columns, style.utf8);
  }
  return lines;
}

std::string SampleLine(const WatchState& state) {
  const v1::StepSample& last = state.recent().back();
  const int64_t steps = state.job().shape().steps();
  std::string line =
      absl::StrFormat("step %d/%d (%d%%)  loss %.4f%s  recipe r%d%s", last.step() + 1, steps,
                      PercentOf(last.step() + 1, steps), last.loss(), SpeedAndEta(state, "  "),
                      last.revision(), last.updated() ? "" : "  no update");
  const std::string difference = DifferenceText(state);
  if (!difference.empty()) absl::StrAppend(&line, "  ", difference);
  return line;
}

}  // namespace nibble
