#include "client/remote/completion.h"

#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/local/exit_code.h"

namespace nibble {
namespace {

std::vector<const CLI::App*> Parts(const CLI::App& app) {
  return app.get_subcommands(std::function<bool(const CLI::App*)>());
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  return app.get_options(std::function<bool(const CLI::Option*)>());
}

std::vector<std::string> Names(const std::vector<const CLI::App*>& parts) {
  std::vector<std::string> names;
  for (const CLI::App* part : parts) names.push_back(part->get_name());
  return names;
}

std::vector<std::string> OptionWords(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : OptionsOf(app)) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    for (const std::string& name : option->get_snames()) words.push_back("-" + name);
  }
  return words;
}

// What stands where the verb wants words: "job", "worker", "queue", "checkpoint" (a job or a
// directory), "file".
std::string ArgumentOf(const CLI::App& noun, const CLI::App& verb) {
  std::string argument = "file";
  for (const CLI::Option* option : OptionsOf(verb)) {
    const std::string& name = option->get_positional() ? option->get_name(true) : std::string();
    if (name == "JOB") argument = "job";
    if (name == "WORKER") argument = "worker";
    if (name == "QUEUE") argument = "queue";
    const bool of_job = verb.get_option_no_throw("--server") != nullptr;
    if (of_job && noun.get_name() == "recipe" && (name == "A" || name == "PRESET")) {
      argument = "job";
    }
    if (of_job && noun.get_name() == "checkpoint" && argument == "file") argument = "checkpoint";
  }
  return argument;
}

// Words that are arguments of a shell's case, and a call for each verb.
std::string BashCases(const CLI::App& app) {
  std::string cases = absl::StrCat("    ' ') words='", absl::StrJoin(Names(Parts(app)), " "), " ",
                                   absl::StrJoin(OptionWords(app), " "), "' ;;\n");
  for (const CLI::App* noun : Parts(app)) {
    const std::vector<const CLI::App*> verbs = Parts(*noun);
    absl::StrAppend(
        &cases, "    '", noun->get_name(), " ') words='", absl::StrJoin(Names(verbs), " "), "'",
        verbs.empty()
            ? absl::StrCat(" options='", absl::StrJoin(OptionWords(*noun), " "), "' argument=file")
            : "",
        " ;;\n");
    // A noun without verbs has words behind it that look like one.
    if (verbs.empty()) {
      absl::StrAppend(&cases, "    '", noun->get_name(), " '*) options='",
                      absl::StrJoin(OptionWords(*noun), " "), "' argument=file ;;\n");
    }
    for (const CLI::App* verb : verbs) {
      absl::StrAppend(&cases, "    '", noun->get_name(), " ", verb->get_name(), "') options='",
                      absl::StrJoin(OptionWords(*verb), " "),
                      "' argument=", ArgumentOf(*noun, *verb), " ;;\n");
    }
  }
  return cases;
}

constexpr char kBash[] = R"SH(# nibble in bash: source <(nibble completion bash)
_nibble_names() {
  # Names from the cluster that the line is about; nothing where nobody answers at once.
  "${COMP_WORDS[0]}" "$@" --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }'
}

_nibble() {
  local current="${COMP_WORDS[COMP_CWORD]}" before="" noun="" verb="" word="" i=0
  local words="" options="" argument=""
  local -a server=()
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    if [[ $before == --server ]]; then server=(--server "$word"); fi
    # An address holds a colon, which bash takes for a word of its own.
    if [[ ${#server[@]} -gt 0 && $before == : ]]; then server[1]+=":$word"; fi
    if [[ $word != -* ]]; then
      if [[ -z $noun ]]; then noun="$word"; elif [[ -z $verb ]]; then verb="$word"; fi
    fi
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

void AppendFishOptions(const CLI::App& app, const std::string& condition, std::string& script) {
  for (const CLI::Option* option : OptionsOf(app)) {
    if (option->get_lnames().empty() && option->get_snames().empty()) continue;
    absl::StrAppend(&script, "complete -c nibble -n ", FishText(condition));
    for (const std::string& name : option->get_lnames()) absl::StrAppend(&script, " -l ", name);
    for (const std::string& name : option->get_snames()) absl::StrAppend(&script, " -s ", name);
    if (option->get_items_expected_max() > 0) absl::StrAppend(&script, " -r");
    if (option->check_lname("output")) absl::StrAppend(&script, " -f -a 'table json yaml'");
    absl::StrAppend(&script, " -d ", FishText(option->get_description()), "\n");
  }
}

std::string FishScript(const CLI::App& app) {
  std::string script =
      "# nibble in fish: nibble completion fish | source\n"
      "function __nibble_names\n"
      "    nibble $argv --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }'\n"
      "end\n";
  for (const CLI::App* noun : Parts(app)) {
    absl::StrAppend(&script, "complete -c nibble -n __fish_use_subcommand -f -a ", noun->get_name(),
                    " -d ", FishText(noun->get_description()), "\n");
    const std::string seen = absl::StrCat("__fish_seen_subcommand_from ", noun->get_name());
    const std::vector<const CLI::App*> verbs = Parts(*noun);
    if (verbs.empty()) AppendFishOptions(*noun, seen, script);
    const std::string none = absl::StrCat(seen, "; and not __fish_seen_subcommand_from ",
                                          absl::StrJoin(Names(verbs), " "));
    for (const CLI::App* verb : verbs) {
      absl::StrAppend(&script, "complete -c nibble -n ", FishText(none), " -f -a ",
                      verb->get_name(), " -d ", FishText(verb->get_description()), "\n");
      const std::string here =
          absl::StrCat(seen, "; and __fish_seen_subcommand_from ", verb->get_name());
      AppendFishOptions(*verb, here, script);
      const std::string argument = ArgumentOf(*noun, *verb);
      if (argument == "file") continue;
      absl::StrAppend(&script, "complete -c nibble -n ", FishText(here),
                      argument == "checkpoint" ? "" : " -f", " -a '(__nibble_names ",
                      argument == "checkpoint" ? "job" : argument, " list)'\n");
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const std::string& shell, const CLI::App& app) {
  if (shell == "fish") return FishScript(app);
  const std::string bash = absl::StrReplaceAll(kBash, {{"@CASES@", BashCases(app)}});
  return shell == "zsh" ? absl::StrCat(kZshHead, bash) : bash;
}

void AddCompletionCommand(CLI::App& app, int& exit_code) {
  CLI::App* const completion =
      app.add_subcommand("completion", "A script by which the shell completes what is typed");
  completion->require_subcommand(1);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    completion->add_subcommand(shell, absl::StrCat("For ", shell))
        ->callback([&app, &exit_code, shell = std::string(shell)] {
          std::fputs(CompletionScript(shell, app).c_str(), stdout);
          exit_code = kExitDone;
        });
  }
}

}  // namespace nibble
