// The first word of a command: local verbs and verbs of a cluster share it.
//
// Ownership: the app owns the noun. Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_LOCAL_NOUN_H_
#define NIBBLE_CLIENT_LOCAL_NOUN_H_

#include <CLI/CLI.hpp>
#include <string>

namespace nibble {

// The noun of this name, made with this help where nobody has before.
inline CLI::App* NounOf(CLI::App& app, const std::string& name, const std::string& help) {
  for (CLI::App* noun : app.get_subcommands({})) {
    if (noun->get_name() == name) return noun;
  }
  CLI::App* const noun = app.add_subcommand(name, help);
  noun->require_subcommand(1);
  return noun;
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_NOUN_H_
