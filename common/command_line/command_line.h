// Command lines of programs: commands with subcommands, options, their checks and help texts. CLI11
// parses them; only command_line.cc includes it, because its header takes seconds to compile.
//
// Ownership: a CommandLine owns everything that is added to it. Command and Option are handles:
// cheap to copy, valid as long as the CommandLine. Variables that options write to are borrowed and
// must outlive the parsing. Thread-safety: none.
#ifndef NIBBLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_
#define NIBBLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace nibble {

template <class T, class... Types>
concept OneOfTypes = (std::same_as<T, Types> || ...);

// The types of variables that an option can write to. If the option is not given, the variable
// keeps its value.
template <class T>
concept OptionValue =
    OneOfTypes<T, std::string, int32_t, int64_t, uint32_t, uint64_t, float, double,
               std::optional<std::string>, std::optional<int32_t>, std::optional<int64_t>,
               std::vector<std::string>, std::vector<int32_t>, std::vector<int64_t>>;

// One option, flag or positional of a command. Setters return the option, so that calls chain.
class Option {
 public:
  // `most`: the largest value that the option's variable can hold, for AtLeast().
  explicit Option(CLI::Option* option, int64_t most = std::numeric_limits<int64_t>::max())
      : option_(option), most_(most) {}

  Option Required() const;
  // Shows the variable's present value, or `text`, as the default in the help.
  Option ShowDefault() const;
  Option ShowDefault(const std::string& text) const;
  // Lists the option under this heading in the help.
  Option Group(const std::string& heading) const;
  Option Describe(const std::string& help) const;  // replaces its help

  // Checks of each given value, which the help also shows. Errors begin with the option's name.
  // "'17'; allowed: whole numbers, 1 to 16". `most` of numeric_limits<int64_t>::max() means no
  // bound: "1 or more".
  Option WholeNumber(int64_t least, int64_t most) const;
  // WholeNumber(least, what the variable can hold). For options that were just added.
  Option AtLeast(int64_t least) const;
  // "'17'; allowed: numbers, 1 to 16"; with an open end "numbers, above 1 to 16" or "numbers, 1 to
  // below 16".
  enum class OpenEnd : uint8_t { kNone, kLeast, kMost };
  Option RealNumber(double least, double most, OpenEnd open = OpenEnd::kNone) const;
  // WholeNumber() or RealNumber(), by the type of the bounds.
  template <std::integral Least, std::integral Most>
  Option InRange(Least least, Most most) const {
    return WholeNumber(static_cast<int64_t>(least), static_cast<int64_t>(most));
  }
  Option InRange(double least, double most) const { return RealNumber(least, most); }
  Option AboveUpTo(double least, double most) const {
    return RealNumber(least, most, OpenEnd::kLeast);
  }
  Option FromToBelow(double least, double most) const {
    return RealNumber(least, most, OpenEnd::kMost);
  }
  // "c not in {a,b}".
  Option OneOf(const std::vector<std::string>& allowed) const;
  Option OneOfNumbers(const std::vector<int>& allowed) const;
  // `check` returns the problem of a value; empty if there is none.
  Option Check(std::function<std::string(const std::string&)> check) const;

  // For vectors.
  Option OneValueEach() const;  // each occurrence takes one value; the option may be repeated
  Option SplitAt(char delimiter) const;
  Option Expect(int least, int most) const;

  // Another option of the same command that must, or must not, be given with this one.
  Option Needs(Option other) const;
  Option Needs(const std::string& other) const;
  Option Excludes(Option other) const;
  Option Excludes(const std::string& other) const;

  std::string Description() const;
  std::vector<std::string> LongNames() const;   // without "--"
  std::vector<std::string> ShortNames() const;  // without "-"
  std::string PositionalName() const;           // empty: not a positional
  bool TakesValue() const;                      // false: a flag
  bool TakesText() const;                       // its variable is a text, or a list of texts
  bool TakesList() const;                       // its variable is a vector
  // The problem that the checks above have with a value, without the option's name; empty: none.
  std::string Problem(const std::string& value) const;

  // After the parsing.
  bool Given() const;
  // The values that were given, otherwise the default that the help shows, if any.
  std::vector<std::string> Values() const;

 private:
  friend class Command;

  CLI::Option* option_;
  int64_t most_;
};

// A program or one of its subcommands.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  // Setters. Texts are for the help.
  Command AddSubcommand(const std::string& name, const std::string& help) const;
  // A group of options of this command, of which exactly one must be given.
  Command AddChoice(const std::string& heading) const;
  // `name` is "--long", "-s,--long" or the name of a positional.
  template <OptionValue T>
  Option Add(const std::string& name, T& value, const std::string& help) const {
    return Option(AddOption(name, value, help), Most<T>());
  }
  // "!--no-x" sets the variable to false.
  Option AddFlag(const std::string& name, bool& value, const std::string& help) const;
  // Calls `set` with the value during the parsing.
  Option AddCall(const std::string& name, std::function<void(double)> set,
                 const std::string& help) const;
  Option AddCall(const std::string& name, std::function<void(const std::vector<std::string>&)> set,
                 const std::string& help) const;
  Command RequireSubcommand() const;  // exactly one
  Command Footer(const std::string& text) const;
  // Called at the end of the parsing if the command was given.
  Command OnParsed(std::function<void()> run) const;

  std::string Name() const;
  std::string Description() const;
  // The help text; `path` is the command as users type it: "nibble job submit".
  std::string Help(const std::string& path) const;
  std::vector<Command> Subcommands() const;  // in the order in which they were added
  std::optional<Command> FindSubcommand(const std::string& name) const;
  std::vector<Option> Options() const;
  // `name` is "--long", "-s" or a positional's name.
  std::optional<Option> FindOption(const std::string& name) const;
  // As above, of a subcommand or option that exists; a missing one is a bug.
  Command Subcommand(const std::string& name) const;
  Option GetOption(const std::string& name) const;

  // After the parsing.
  bool Parsed() const;                             // the command was given
  std::vector<Command> ParsedSubcommands() const;  // those that were given
  std::vector<std::string> Unread() const;         // words that no option has consumed

 protected:
  CLI::App* app() const { return app_; }

 private:
  template <class T>
  static constexpr int64_t Most() {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if constexpr (std::is_same_v<T, int32_t> || std::is_same_v<T, std::optional<int32_t>>) {
      return std::numeric_limits<int32_t>::max();
    } else if constexpr (std::is_same_v<T, uint32_t>) {
      return std::numeric_limits<uint32_t>::max();
    } else {
      return kMost;
    }
  }
  // Instantiated for every OptionValue.
  template <OptionValue T>
  CLI::Option* AddOption(const std::string& name, T& value, const std::string& help) const;

  CLI::App* app_;
};

// A program's command line, with --help. Not movable: handles point into it.
class CommandLine : public Command {
 public:
  // `name` of the program; empty: the name that it was started with.
  explicit CommandLine(const std::string& help, const std::string& name = "");
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // What --version prints.
  void SetVersion(const std::string& text);

  // Parses and runs the OnParsed functions. Returns the exit code of a program that ends here: 0
  // after help was printed, `usage_exit_code` after an error was printed on stderr. Unset: the
  // program continues.
  std::optional<int> Parse(int argc, const char* const* argv, int usage_exit_code);

  // As above, without the program's name; an error is InvalidArgument and is not printed.
  enum class Outcome { kParsed, kHelpPrinted };
  absl::StatusOr<Outcome> ParseWords(std::vector<std::string> words);

 private:
  std::unique_ptr<CLI::App> owned_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_
