// `nibble job list | describe | events | wait | compare`: nothing changes by them.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_READ_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_JOB_READ_VERBS_H_

#include <CLI/CLI.hpp>

namespace nibble {

void AddJobReadVerbs(CLI::App* job, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_READ_VERBS_H_
