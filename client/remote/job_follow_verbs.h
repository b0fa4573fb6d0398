// `nibble job watch | logs`.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_FOLLOW_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_JOB_FOLLOW_VERBS_H_

#include <CLI/CLI.hpp>

namespace nibble {

void AddJobFollowVerbs(CLI::App* job, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_FOLLOW_VERBS_H_
