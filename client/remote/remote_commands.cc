#include "client/remote/remote_commands.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/shell/command_line.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"

namespace nibble {
namespace {

std::vector<std::string> Names(const std::vector<Command>& parts) {
  std::vector<std::string> names;
  for (Command part : parts) names.push_back(part.Name());
  return names;
}

std::vector<std::string> OptionWords(Command app) {
  std::vector<std::string> words;
  for (Option option : app.Options()) {
    for (const std::string& name : option.LongNames()) words.push_back("--" + name);
    for (const std::string& name : option.ShortNames()) words.push_back("-" + name);
  }
  return words;
}

// The kind of the verb's positional: "job", "worker", "queue", "checkpoint" (a job or a directory)
// or "file".
std::string ArgumentOf(Command noun, Command verb) {
  std::string argument = "file";
  for (Option option : verb.Options()) {
    const std::string name = option.PositionalName();
    if (name == "JOB") argument = "job";
    if (name == "WORKER") argument = "worker";
    if (name == "QUEUE") argument = "queue";
    const bool of_job = verb.FindOption("--server").has_value();
    if (of_job && noun.Name() == "recipe" && name == "A") argument = "job";
    if (of_job && noun.Name() == "checkpoint" && argument == "file") argument = "checkpoint";
  }
  return argument;
}

// The branches of the script's `case`: for each noun and verb, the words to complete with.
std::string BashCases(Command app) {
  std::string cases = absl::StrCat("    ' ') words='", absl::StrJoin(Names(app.Subcommands()), " "),
                                   " ", absl::StrJoin(OptionWords(app), " "), "' ;;\n");
  for (Command noun : app.Subcommands()) {
    const std::vector<Command> verbs = noun.Subcommands();
    absl::StrAppend(
        &cases, "    '", noun.Name(), " ') words='", absl::StrJoin(Names(verbs), " "), "'",
        verbs.empty()
            ? absl::StrCat(" options='", absl::StrJoin(OptionWords(noun), " "), "' argument=file")
            : "",
        " ;;\n");
    // The words after a noun without verbs are arguments.
    if (verbs.empty()) {
      absl::StrAppend(&cases, "    '", noun.Name(), " '*) options='",
                      absl::StrJoin(OptionWords(noun), " "), "' argument=file ;;\n");
    }
    for (Command verb : verbs) {
      const std::vector<Command> parts = verb.Subcommands();
      if (!parts.empty()) {
        absl::StrAppend(&cases, "    '", noun.Name(), " ", verb.Name(), "') words='",
                        absl::StrJoin(Names(parts), " "), "' ;;\n");
      }
      for (Command part : parts.empty() ? std::vector<Command>{verb} : parts) {
        absl::StrAppend(&cases, "    '", noun.Name(), " ", verb.Name(),
                        parts.empty() ? "" : " " + part.Name(), "') options='",
                        absl::StrJoin(OptionWords(part), " "),
                        "' argument=", ArgumentOf(noun, part), " ;;\n");
      }
    }
  }
  return cases;
}

// " checkpoint/trash ": the verbs that have verbs of their own.
std::string NestedVerbs(Command app) {
  std::string nested = " ";
  for (Command noun : app.Subcommands()) {
    for (Command verb : noun.Subcommands()) {
      if (verb.Subcommands().empty()) continue;
      absl::StrAppend(&nested, noun.Name(), "/", verb.Name(), " ");
    }
  }
  return nested;
}

constexpr char kBash[] = R"SH(# nibble in bash: source <(nibble completion bash)
_nibble_names() {
  # Names from the cluster that the line is about; none if it does not answer at once.
  "${COMP_WORDS[0]}" "$@" --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }'
}

_nibble() {
  local current="${COMP_WORDS[COMP_CWORD]}" before="" noun="" verb="" word="" i=0
  local words="" options="" argument=""
  local -a server=()
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    # Bash splits words at '=' and ':'.
    if [[ $word == = ]]; then continue; fi
    case "$before" in
      --server) server=(--server "$word") ;;
      --timeout | --output | -o | --token-file | --tls-cert | --tls-key | --tls-ca) ;;
      *)
        if [[ $before == : && ${#server[@]} -gt 0 ]]; then
          server[1]+=":$word"
        elif [[ $word != -* && $word != : ]]; then
          if [[ -z $noun ]]; then
            noun="$word"
          elif [[ -z $verb ]]; then
            verb="$word"
          elif [[ "@NESTED@" == *" $noun/$verb "* ]]; then
            verb+=" $word"
          fi
        fi
        ;;
    esac
    before="$word"
  done
  case "$before" in
    -o | --output)
      COMPREPLY=($(compgen -W 'table json yaml' -- "$current"))
      return
      ;;
  esac
  case "$noun $verb" in
@CASES@  esac
  if [[ $current == -* && -n $options ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
    return
  fi
  case "$argument" in
    job) words="$(_nibble_names job list "${server[@]}")" ;;
    worker) words="$(_nibble_names worker list "${server[@]}")" ;;
    queue) words="$(_nibble_names queue list "${server[@]}")" ;;
    checkpoint)
      words="$(_nibble_names job list "${server[@]}")"
      COMPREPLY=($(compgen -d -- "$current"))
      ;;
    file) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
  COMPREPLY+=($(compgen -W "$words" -- "$current"))
}
complete -o filenames -F _nibble nibble
)SH";

constexpr char kZshHead[] =
    "#compdef nibble\n"
    "# nibble in zsh: source <(nibble completion zsh)\n"
    "autoload -U +X compinit && compinit -u\n"
    "autoload -U +X bashcompinit && bashcompinit\n";

std::string FishText(std::string text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

void AppendFishOptions(Command app, const std::string& condition, std::string& script) {
  for (Option option : app.Options()) {
    if (option.LongNames().empty() && option.ShortNames().empty()) continue;
    absl::StrAppend(&script, "complete -c nibble -n ", FishText(condition));
    for (const std::string& name : option.LongNames()) absl::StrAppend(&script, " -l ", name);
    for (const std::string& name : option.ShortNames()) absl::StrAppend(&script, " -s ", name);
    if (option.TakesValue()) absl::StrAppend(&script, " -r");
    const std::vector<std::string> names = option.LongNames();
    if (std::find(names.begin(), names.end(), "output") != names.end())
      absl::StrAppend(&script, " -f -a 'table json yaml'");
    absl::StrAppend(&script, " -d ", FishText(option.Description()), "\n");
  }
}

// The options and the argument of a verb; `here` holds where they are to be completed.
void AppendFishVerb(Command noun, Command verb, const std::string& here, std::string& script) {
  AppendFishOptions(verb, here, script);
  const std::string argument = ArgumentOf(noun, verb);
  if (argument == "file") return;
  absl::StrAppend(&script, "complete -c nibble -n ", FishText(here),
                  argument == "checkpoint" ? "" : " -f", " -a '(__nibble_names ",
                  argument == "checkpoint" ? "job" : argument, " list)'\n");
}

std::string FishScript(Command app) {
  std::string script =
      "# nibble in fish: nibble completion fish | source\n"
      "function __nibble_names\n"
      "    nibble $argv --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }'\n"
      "end\n";
  for (Command noun : app.Subcommands()) {
    absl::StrAppend(&script, "complete -c nibble -n __fish_use_subcommand -f -a ", noun.Name(),
                    " -d ", FishText(noun.Description()), "\n");
    const std::string seen = absl::StrCat("__fish_seen_subcommand_from ", noun.Name());
    const std::vector<Command> verbs = noun.Subcommands();
    if (verbs.empty()) AppendFishOptions(noun, seen, script);
    const std::string none = absl::StrCat(seen, "; and not __fish_seen_subcommand_from ",
                                          absl::StrJoin(Names(verbs), " "));
    for (Command verb : verbs) {
      absl::StrAppend(&script, "complete -c nibble -n ", FishText(none), " -f -a ", verb.Name(),
                      " -d ", FishText(verb.Description()), "\n");
      const std::string here =
          absl::StrCat(seen, "; and __fish_seen_subcommand_from ", verb.Name());
      const std::vector<Command> parts = verb.Subcommands();
      if (parts.empty()) AppendFishVerb(noun, verb, here, script);
      for (Command part : parts) {
        absl::StrAppend(&script, "complete -c nibble -n ", FishText(here), " -f -a ", part.Name(),
                        " -d ", FishText(part.Description()), "\n");
        AppendFishVerb(noun, part,
                       absl::StrCat(here, "; and __fish_seen_subcommand_from ", part.Name()),
                       script);
      }
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const std::string& shell, Command app) {
  if (shell == "fish") return FishScript(app);
  const std::string bash =
      absl::StrReplaceAll(kBash, {{"@CASES@", BashCases(app)}, {"@NESTED@", NestedVerbs(app)}});
  return shell == "zsh" ? absl::StrCat(kZshHead, bash) : bash;
}

void AddCompletionCommand(Command app, int& exit_code) {
  const Command completion =
      app.AddSubcommand("completion", "Print a script that completes commands in the shell");
  completion.RequireSubcommand();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    completion.AddSubcommand(shell, absl::StrCat("For ", shell))
        .OnParsed([app, &exit_code, shell = std::string(shell)] {
          std::fputs(CompletionScript(shell, app).c_str(), stdout);
          exit_code = kExitDone;
        });
  }
}

void AddRemoteCommands(Command app, int& exit_code) {
  const Command job = NounOf(app, "job", "Jobs of a cluster");
  AddJobSubmitVerbs(job, exit_code);
  AddJobReadVerbs(job, exit_code);
  AddJobFollowVerbs(job, exit_code);
  AddJobMetricsVerb(job, exit_code);
  AddJobReportVerb(job, exit_code);
  AddJobTraceVerb(job, exit_code);
  AddJobChangeVerbs(job, exit_code);
  AddRecipeVerbs(AddRecipeCommand(app, exit_code, JobRecipes()), exit_code);
  AddWorkerNoun(app, exit_code);
  AddQueueNoun(app, exit_code);
  AddTokenNoun(app, exit_code);
  const Command checkpoint = NounOf(app, "checkpoint", "Checkpoints of jobs");
  AddOrphanVerbs(checkpoint, exit_code);
  AddDeletionVerbs(checkpoint, exit_code);
}

}  // namespace nibble
