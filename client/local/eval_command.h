// `nibble eval`: how good a trained model is, on token data or on multiple-choice questions.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_LOCAL_EVAL_COMMAND_H_
#define NIBBLE_CLIENT_LOCAL_EVAL_COMMAND_H_

#include <CLI/CLI.hpp>

#include "worker/infer/weight_opener.h"

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error, 102 no such model
// or file. Results go to stdout, progress and errors to stderr.
void AddEvalCommand(CLI::App& app, int& exit_code, WeightOpener open);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_EVAL_COMMAND_H_
