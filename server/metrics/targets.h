// What Prometheus is to scrape, in the form of its http_sd: the coordinator and every daemon that
// it knows and that shows metrics, present or not, since one that is away is to be seen as down.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_METRICS_TARGETS_H_
#define NIBBLE_SERVER_METRICS_TARGETS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "server/state/state.h"

namespace nibble {

// JSON. `self`: host:port of the coordinator's own page.
std::string ScrapeTargets(const State& state, absl::string_view self);

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_TARGETS_H_
