// Shows the state of a watch in the form that the output takes: redrawn in place on a terminal,
// where keys switch parts of the view; plain lines on a pipe; one JSON object per line for
// programs.
//
// Ownership: session and state are borrowed. Owns the terminal's keyboard from Begin() on.
// Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_WATCH_DISPLAY_H_
#define NIBBLE_CLIENT_REMOTE_WATCH_DISPLAY_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/remote/terminal.h"
#include "client/remote/verb.h"
#include "client/remote/watch_state.h"
#include "client/remote/watch_view.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {

class WatchDisplay {
 public:
  // Least time between redraws, and how often keys are to be handled.
  static constexpr absl::Duration kRedraw = absl::Milliseconds(100);

  WatchDisplay(Session& session, const WatchState& state)
      : session_(session), state_(state), terminal_(!json() && StdoutIsTerminal()) {}

  bool terminal() const { return terminal_; }
  bool json() const { return session_.for_programs(); }

  void Begin();
  void Message(const v1::WatchJobsResponse& message);
  void Event(const v1::JobEvent& event);
  // The state has a new sample.
  void Sample();
  // Shows a note about the connection; empty: removes it.
  void Note(const std::string& note);
  // The state has changed.
  void Invalidate() { dirty_ = true; }
  // Obeys the keys that were pressed; false if the watch is to end.
  bool HandleKeys();
  // Redraws if something changed, including the terminal's size, but at most every kRedraw.
  void Draw(bool at_once = false);
  // The last view; the keyboard is released.
  void Finish();
  // As Finish(), for a watch that leaves a running job.
  void Leave();

 private:
  void PrintSample();

  Session& session_;
  const WatchState& state_;
  const bool terminal_;
  std::optional<Keyboard> keyboard_;
  WatchOptions options_;
  Screen screen_;
  TerminalSize size_;
  std::string note_;
  std::string begun_;  // what Begin() printed, while nothing has followed it
  bool dirty_ = true;
  bool unprinted_ = false;
  absl::Duration drawn_ = -absl::InfiniteDuration();
  absl::Duration printed_ = -absl::InfiniteDuration();
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WATCH_DISPLAY_H_
