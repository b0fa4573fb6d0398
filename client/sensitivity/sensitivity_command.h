// `nibble job sensitivity`: which layers cost the most, measured by forks or estimated from the
// job's precision statistics.
//
// Ownership: the command line keeps the verb and its flags; `exit_code` outlives it. Thread-safety:
// none.
#ifndef NIBBLE_CLIENT_SENSITIVITY_SENSITIVITY_COMMAND_H_
#define NIBBLE_CLIENT_SENSITIVITY_SENSITIVITY_COMMAND_H_

#include "common/command_line/command_line.h"

namespace nibble {

void AddSensitivityVerb(Command app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SENSITIVITY_SENSITIVITY_COMMAND_H_
