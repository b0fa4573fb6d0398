// `nibble queue list | set | delete`.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_QUEUE_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_QUEUE_VERBS_H_

#include <CLI/CLI.hpp>

namespace nibble {

void AddQueueNoun(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_QUEUE_VERBS_H_
