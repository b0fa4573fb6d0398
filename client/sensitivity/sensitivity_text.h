// The results of `nibble job sensitivity` as a table, as JSON and as CSV, and the commands that
// apply them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_SENSITIVITY_SENSITIVITY_TEXT_H_
#define NIBBLE_CLIENT_SENSITIVITY_SENSITIVITY_TEXT_H_

#include <string>
#include <vector>

#include "client/sensitivity/fork_plan.h"
#include "client/sensitivity/precision_table.h"
#include "client/sensitivity/ranking.h"
#include "model/outline.h"

namespace nibble {

// The three forms of one result.
struct Rendered {
  std::string table;
  std::string json;
  std::string csv;
};

// `running`: the job still trains, so that its recipe can be changed; otherwise the suggestion is a
// fork from the experiment's checkpoint.
Rendered RenderRanking(const Experiment& experiment, const Outline& outline, const Ranking& ranking,
                       const std::vector<ForkResult>& forks, bool running);

// The arms and the number of forks, before anything runs.
Rendered RenderPlan(const Experiment& experiment);

// In single quotes, for a shell.
std::string ShellQuoted(const std::string& text);
// The command that applies a promotion: to the job from now on, or to a fork of its checkpoint.
std::string ApplyCommand(const Experiment& experiment, const std::string& selector, bool running);

// The table of `--statistics`.
Rendered RenderPrecision(const std::string& job, const PrecisionTable& table);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SENSITIVITY_SENSITIVITY_TEXT_H_
