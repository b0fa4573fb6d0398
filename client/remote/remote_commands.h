// The verbs that call a coordinator, the jobs of a cluster as a source of nouns, and the completion
// of commands by the shell.
//
// Ownership: the command line keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_
#define NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_

#include <string>

#include "client/shell/nouns.h"
#include "common/command_line/command_line.h"

namespace nibble {

// Recipes of the jobs of a cluster, for AddRecipeCommand(), and their checkpoints, for
// AddCheckpointCommand().
RecipeSource JobRecipes();          // recipe_verbs
CheckpointSource JobCheckpoints();  // checkpoint_verbs

// Adds the noun recipe, and the verbs of jobs, workers, queues and orphaned checkpoints that only a
// cluster has. `exit_code` is set when one runs; see client/shell/output.h.
void AddRemoteCommands(Command app, int& exit_code);

// Its parts, by the file that has them.
void AddJobSubmitVerbs(Command job, int& exit_code);  // job_change_verbs: submit, fork
void AddJobChangeVerbs(Command job, int& exit_code);  // job_change_verbs: pause, resume, kill, ...
void AddJobReadVerbs(Command job, int& exit_code);    // job_read_verbs: list, describe, wait, ...
void AddJobFollowVerbs(Command job, int& exit_code);  // job_watch: watch, logs
void AddJobMetricsVerb(Command job, int& exit_code);  // job_metrics: metrics
void AddJobReportVerb(Command job, int& exit_code);   // job_report: report
void AddJobTraceVerb(Command job, int& exit_code);    // job_trace: trace
void AddRecipeVerbs(Command recipe, int& exit_code);  // recipe_verbs: get, set, history, rollback
void AddWorkerNoun(Command app, int& exit_code);      // worker_queue_verbs
void AddQueueNoun(Command app, int& exit_code);       // worker_queue_verbs
void AddTokenNoun(Command app, int& exit_code);       // token_verbs: create, list, revoke
void AddOrphanVerbs(Command checkpoint, int& exit_code);  // checkpoint_verbs: orphans, adopt, ...
// checkpoint_trash_verbs: history, trash list, trash restore
void AddDeletionVerbs(Command checkpoint, int& exit_code);

// `nibble completion bash | zsh | fish`: a script that completes every noun, verb and option that
// `app` has when the verb runs, and the names of jobs, workers and queues, by calls to the cluster.
void AddCompletionCommand(Command app, int& exit_code);
// The script. `shell` is "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell, Command app);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_
