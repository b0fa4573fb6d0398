#include "client/remote/watch_display.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/remote/job_text.h"
#include "client/remote/styled_text.h"
#include "common/text/text.h"

namespace nibble {
namespace {

constexpr absl::Duration kClockRedraw = absl::Seconds(1);  // redraw for running times
constexpr absl::Duration kLineEvery = absl::Seconds(1);    // between sample lines on a pipe

}  // namespace

void WatchDisplay::Begin() {
  if (terminal_) keyboard_.emplace();
  if (terminal_ || json()) return;
  begun_ = JobLine(state_.job());
  session_.Out(begun_);
}

void WatchDisplay::Message(const v1::WatchJobsResponse& message) {
  if (json()) session_.PrintElement(message);
}

void WatchDisplay::Event(const v1::JobEvent& event) {
  dirty_ = true;
  if (terminal_ || json()) return;
  begun_.clear();
  session_.Out(absl::StrCat(TimeText(event.time_unix_ms()), "  ", EventText(event), "\n"));
}

void WatchDisplay::Sample() {
  dirty_ = true;
  unprinted_ = true;
  if (SteadyNow() - printed_ >= kLineEvery) PrintSample();
}

void WatchDisplay::Note(const std::string& note) {
  dirty_ = true;
  note_ = note;
  if (!terminal_ && !note.empty()) session_.Say(note);
}

bool WatchDisplay::HandleKeys() {
  if (!keyboard_) return true;
  while (const std::optional<char> key = keyboard_->Read()) {
    if (*key == 'q') return false;
    if (options_.Switch(*key)) dirty_ = true;
  }
  return true;
}

void WatchDisplay::Draw(bool at_once) {
  if (!terminal_) return;
  const absl::Duration now = SteadyNow();
  const TerminalSize size = StdoutSize();
  const absl::Duration since = now - drawn_;
  const bool due = dirty_ || size != size_ || since >= kClockRedraw;
  if (!at_once && (!due || since < kRedraw)) return;
  const ViewStyle style = {.columns = size.columns,
                           .rows = size.rows,
                           .utf8 = LocaleIsUtf8(),
                           .colours = StdoutHasColours(),
                           .keys = keyboard_ && keyboard_->active()};
  std::vector<std::string> lines;
  for (const StyledLine& line :
       RenderWatch(state_, options_, style, absl::ToUnixMillis(absl::Now()), note_)) {
    lines.push_back(line.Text(style.colours));
  }
  session_.Out(screen_.Draw(lines, size.columns));
  drawn_ = now;
  size_ = size;
  dirty_ = false;
}

void WatchDisplay::Finish() {
  Leave();
  if (terminal_ || json()) return;
  if (unprinted_) PrintSample();
  // Not twice in a row, for a job that ended before the watch began.
  if (const std::string line = JobLine(state_.job()); line != begun_) session_.Out(line);
}

void WatchDisplay::Leave() {
  options_.help = false;
  keyboard_.reset();
  Draw(true);
}

void WatchDisplay::PrintSample() {
  printed_ = SteadyNow();
  unprinted_ = false;
  if (terminal_ || json()) return;
  begun_.clear();
  session_.Out(SampleLine(state_) + "\n");
}

}  // namespace nibble
