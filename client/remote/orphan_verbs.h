// `nibble checkpoint orphans | adopt | remove-orphan`: what workers have and the coordinator's store
// does not know.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_ORPHAN_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_ORPHAN_VERBS_H_

#include <CLI/CLI.hpp>

namespace nibble {

void AddOrphanVerbs(CLI::App* checkpoint, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_ORPHAN_VERBS_H_
