// Verbs that are about files here or about a cluster, as what they are given says: local verbs ask
// first whether somebody takes the command over.
//
// Thread-safety: values.
#ifndef NIBBLE_CLIENT_LOCAL_TAKE_OVER_H_
#define NIBBLE_CLIENT_LOCAL_TAKE_OVER_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

namespace nibble {

// A command as it was given, read so far as every verb has it.
struct GivenVerb {
  const CLI::App* verb = nullptr;
  std::string name;   // its first word behind the verb; empty: none
  std::string print;  // of --output
};

// The exit code of a command that was taken over; unset: it is about files here.
using TakeOver = std::function<std::optional<int>(const GivenVerb&)>;

inline std::optional<int> TakenOver(const TakeOver& take_over, const GivenVerb& given) {
  return take_over ? take_over(given) : std::nullopt;
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_TAKE_OVER_H_
