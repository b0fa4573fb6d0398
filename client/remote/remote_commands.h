// Every verb of the command line that talks to a coordinator, and the completion of all of them by
// the shell.
//
// Ownership: the command line keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_
#define NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_

#include <memory>
#include <string>

#include "client/shell/command_line.h"
#include "common/command_line/command_line.h"

namespace nibble {

// Adds the verbs of jobs, recipes, workers, queues and orphaned checkpoints. `exit_code` is set
// when one runs: 0 done, 1 error, 100 the job failed, 101 it is not finished, 102 there is no such
// thing, 103 the job was cancelled. The recipe noun is complete, with its local verbs; the job
// noun keeps its local verbs.
void AddRemoteCommands(Command app, int& exit_code);

// Its parts, by the file that has them.
void AddJobSubmitVerbs(Command job, int& exit_code);  // job_change_verbs: submit, fork
void AddJobChangeVerbs(Command job, int& exit_code);  // job_change_verbs: pause, resume, kill, ...
void AddJobReadVerbs(Command job, int& exit_code);    // job_read_verbs: list, describe, wait, ...
void AddJobFollowVerbs(Command job, int& exit_code);  // job_watch: watch, logs
// recipe_verbs: the whole noun, with the verbs that need no cluster. diff and cost are about a job
// unless --model is given, presets about a cluster if --server is given.
void AddRecipeNoun(Command app, int& exit_code);
void AddWorkerNoun(Command app, int& exit_code);          // worker_queue_verbs
void AddQueueNoun(Command app, int& exit_code);           // worker_queue_verbs
void AddOrphanVerbs(Command checkpoint, int& exit_code);  // checkpoint_verbs: orphans, adopt, ...

struct CheckpointFlags;

// `nibble checkpoint list | describe | verify | export | pin | unpin | delete` of a job: the verbs
// that need no cluster, taken over if the name is not a directory here or if
// --server is given. The flags are shared with take_over() and the command line, which may outlive
// this object.
class CheckpointVerbs {
 public:
  CheckpointVerbs();
  // For AddCheckpointCommandWith, which adds the verbs.
  TakeOver take_over() const;
  // Afterwards: adds the options that only a cluster has.
  void AddOptions(Command app) const;

 private:
  std::shared_ptr<CheckpointFlags> flags_;
};

// `nibble completion bash | zsh | fish`: a script for the shell that knows every noun, verb and
// option that `app` has when the verb runs, and asks the cluster for the names of jobs, workers and
// queues.
void AddCompletionCommand(Command app, int& exit_code);
// The script. `shell` is "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell, Command app);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_
