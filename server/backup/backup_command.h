// `nibble-coordinator backup now|list|check|restore`: the operator's side of backups. Works on
// directories only; no coordinator has to run, except for `now`.
//
// Thread-safety: none.
#ifndef NIBBLE_SERVER_BACKUP_BACKUP_COMMAND_H_
#define NIBBLE_SERVER_BACKUP_BACKUP_COMMAND_H_

namespace nibble {

// `argv[0]`: "backup". Returns the exit code: 0 done, 1 error or damaged backups, 2 usage.
int RunBackupCommand(int argc, const char* const* argv);

}  // namespace nibble

#endif  // NIBBLE_SERVER_BACKUP_BACKUP_COMMAND_H_
