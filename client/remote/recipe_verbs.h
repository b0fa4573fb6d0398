// `nibble recipe get | set | history | rollback` of a job, and what of `presets | diff | cost` is
// about a cluster.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_RECIPE_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_RECIPE_VERBS_H_

#include <CLI/CLI.hpp>

namespace nibble {

// The whole noun, with the verbs that need no cluster. diff and cost are about a job where no
// --model is given, presets where --server is.
void AddRecipeNoun(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RECIPE_VERBS_H_
