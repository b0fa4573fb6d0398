// `nibble completion bash | zsh | fish`: a script for the shell that knows every noun, verb and
// option, and asks the cluster for names of jobs, workers and queues.
//
// Ownership: none. Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_COMPLETION_H_
#define NIBBLE_CLIENT_REMOTE_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>

namespace nibble {

// The script for all that `app` has. `shell` is "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell, const CLI::App& app);

// What `app` has when the verb runs is what is completed. `app` outlives the verb.
void AddCompletionCommand(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_COMPLETION_H_
