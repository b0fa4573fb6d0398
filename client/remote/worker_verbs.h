// `nibble worker list | describe | drain | uncordon`.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_WORKER_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_WORKER_VERBS_H_

#include <CLI/CLI.hpp>

namespace nibble {

void AddWorkerNoun(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WORKER_VERBS_H_
