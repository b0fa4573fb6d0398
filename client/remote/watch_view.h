// The display of `nibble job watch`: pure functions of what the coordinator has reported.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_WATCH_VIEW_H_
#define NIBBLE_CLIENT_REMOTE_WATCH_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/remote/styled_text.h"
#include "client/remote/watch_sections.h"
#include "client/remote/watch_state.h"

namespace nibble {

enum class Smoothing : uint8_t { kLight, kStrong, kNone };

// What users switch by keys.
struct WatchOptions {
  bool reference = true;  // show it if there is one
  bool log = false;       // losses on a logarithmic scale
  Smoothing smoothing = Smoothing::kLight;
  bool tokens = false;   // on the x axis, instead of steps
  bool planned = false;  // the whole planned run, instead of the run so far
  bool help = false;

  // What the key switches; false if it has no such meaning.
  bool Switch(char key);
};

// Lines of at most style.columns - 1 columns, fewer than style.rows. A terminal with less than
// about 16 rows or 40 columns has no room for the plot; then the loss line has a small curve.
// `note`, about the connection, is the last line.
std::vector<StyledLine> RenderWatch(const WatchState& state, const WatchOptions& options,
                                    const ViewStyle& style, int64_t now_unix_ms,
                                    const std::string& note);

// "step 120/1000 (12%)  loss 3.1416  12.3k tok/s  eta 14m02s  recipe r2": one line, for a pipe;
// with
// "+0.31% from base-1" if there is a reference.
std::string SampleLine(const WatchState& state);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WATCH_VIEW_H_
