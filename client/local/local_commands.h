// The nouns and verbs of `nibble` that run on this machine, without a cluster. Each function adds
// one noun or verb to `app`; `exit_code` is set when it runs: see client/shell/output.h. Results go
// to stdout, progress and errors to stderr.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it. Thread-safety: none.
#ifndef NIBBLE_CLIENT_LOCAL_LOCAL_COMMANDS_H_
#define NIBBLE_CLIENT_LOCAL_LOCAL_COMMANDS_H_

#include "client/shell/nouns.h"
#include "common/command_line/command_line.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// The checkpoints of runs on this machine, for AddCheckpointCommand().
CheckpointSource DirectoryCheckpoints();

// `nibble checkpoint import`.
void AddImportVerb(Command checkpoint, int& exit_code);

// `nibble checkpoint push | pull`: directories in S3-compatible object storage.
void AddObjectStoreVerbs(Command checkpoint, int& exit_code);

// `nibble data tokenize | inspect | verify`: makes token shards from text, describes and checks
// token files.
void AddDataCommand(Command app, int& exit_code);

// `nibble eval`: the loss of a trained model on token data, or its accuracy on multiple-choice
// questions.
void AddEvalCommand(Command app, int& exit_code, WeightOpener open);

// `nibble generate`: text from a trained model. The text is streamed to stdout; the speed goes to
// stderr.
void AddGenerateCommand(Command app, int& exit_code, WeightOpener open);

// `nibble model presets | show`.
void AddModelCommand(Command app, int& exit_code);

// `nibble quantize`: converts the tensors of a safetensors file to a low-precision format.
void AddQuantizeCommand(Command app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_LOCAL_COMMANDS_H_
