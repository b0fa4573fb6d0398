// The parts of the display of `nibble job watch`, without their layout (watch_view.h) and the plot.
//
// Lines begin with a name in kNameColumns columns. Sentences are wrapped, so that a reason is
// complete; lines of figures are abbreviated, and may still be wider than a very narrow terminal.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_WATCH_SECTIONS_H_
#define NIBBLE_CLIENT_REMOTE_WATCH_SECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/remote/styled_text.h"
#include "client/remote/watch_state.h"

namespace nibble {

inline constexpr size_t kNameColumns = 10;  // "recipe    "

// What the terminal can show.
struct ViewStyle {
  int columns = 80;
  int rows = 24;
  bool utf8 = true;
  bool colours = false;
  bool keys = false;  // the keyboard is read
};

// What a line may have.
struct LineFormat {
  size_t columns = 79;
  bool utf8 = true;
};

// "12.3k tok/s", "eta 7m30s", each after `between`.
std::string SpeedAndEta(const WatchState& state, const char* between);
// "+1.23% from base-1", and at which step if the reference ended before this job's last samples.
// Empty without a reference or common steps.
std::string DifferenceText(const WatchState& state);
int64_t PercentOf(int64_t done, int64_t whole);

StyledLine HeadLine(const WatchState& state, int64_t now_unix_ms, size_t columns, bool keys);
StyledLine ProgressLine(const WatchState& state, size_t columns);
// With a curve of one line if `curve` and the terminal has UTF-8.
StyledLine LossLine(const WatchState& state, const LineFormat& format, bool curve, bool reference);
// What the ranks wait for, and why the job does not run.
std::vector<StyledLine> ReasonLines(const WatchState& state, const LineFormat& format);
// The recipe in effect, then revisions that take effect later.
std::vector<StyledLine> RecipeLines(const WatchState& state, const LineFormat& format);
// The duration of a step, and a bar of its parts, or their shares in words where a bar has no room
// for them; empty without samples.
std::vector<StyledLine> StepLines(const WatchState& state, const LineFormat& format);
// The time that each rank works per step, and the slowest; empty with fewer than two ranks.
std::vector<StyledLine> RankLines(const WatchState& state, const LineFormat& format);
// A summary of all operands, then the worst three; empty without a sampled step.
struct PrecisionView {
  std::vector<StyledLine> lines;
  std::vector<size_t> ends;  // lines after which it may be cut: after the summary, each operand
};
PrecisionView PrecisionLines(const WatchState& state, const LineFormat& format);
// The attempt, then its placements: first those that are not in order, of which there are
// `troubled`.
struct AttemptView {
  std::vector<StyledLine> lines;
  size_t troubled = 0;
};
AttemptView AttemptLines(const WatchState& state, const LineFormat& format);
// The newest events that fit, unabridged, in `room` lines; oldest first.
std::vector<StyledLine> EventLines(const WatchState& state, const LineFormat& format, size_t room);
// The keys and signs.
std::vector<StyledLine> HelpLines(bool utf8);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WATCH_SECTIONS_H_
