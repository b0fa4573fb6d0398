// The nouns and verbs of `nibble` that run here, without a cluster. Each function adds one noun, or
// a verb without a noun, to `app`; `exit_code` is set when the command runs: 0 done, 1 error, 102
// what the command names does not exist. Results go to stdout, progress and errors to stderr.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it. Thread-safety: none.
#ifndef NIBBLE_CLIENT_LOCAL_LOCAL_COMMANDS_H_
#define NIBBLE_CLIENT_LOCAL_LOCAL_COMMANDS_H_

#include "client/shell/command_line.h"
#include "common/command_line/command_line.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// `nibble checkpoint list | describe | verify | pin | unpin | delete | export | import`, of a run
// on this machine. Damaged bytes are an error. Every verb except import first offers itself to
// `take_over`.
void AddCheckpointCommandWith(Command app, int& exit_code, const TakeOver& take_over);

// `nibble data tokenize | inspect | verify`: token shards from text, and what token files contain.
void AddDataCommand(Command app, int& exit_code);

// `nibble eval`: a trained model's loss on token data, or its accuracy on multiple-choice
// questions.
void AddEvalCommand(Command app, int& exit_code, WeightOpener open);

// `nibble generate`: text from a trained model. The text goes to stdout as it is made, speed to
// stderr.
void AddGenerateCommand(Command app, int& exit_code, WeightOpener open);

// `nibble model presets | show`.
void AddModelCommand(Command app, int& exit_code);

// `nibble quantize`: the tensors of a safetensors file in a low-precision format.
void AddQuantizeCommand(Command app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_LOCAL_COMMANDS_H_
