#include "common/command_line/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

std::string Allowed(const std::string& least, const std::string& most, bool bounded) {
  return bounded ? absl::StrCat(least, " to ", most) : absl::StrCat(least, " or more");
}

// The check that an option has by the type of its variable, until it gets one of its own.
constexpr char kTypeCheck[] = "by type";

template <class T>
struct ElementOf {
  using Type = T;
};
template <class T>
struct ElementOf<std::optional<T>> {
  using Type = T;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using Type = T;
};

// Replaces a number's text by its plain decimal form, because CLI11 would read 010 as octal;
// otherwise returns what is allowed.
template <class T>
std::string CheckWholeNumber(std::string& text, T least, T most, const std::string& allowed) {
  T value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
    return absl::StrCat("'", text, "'; allowed: whole numbers, ", allowed);
  }
  text = absl::StrCat(value);
  return "";
}

// CLI11 takes -1 for the largest unsigned number, and the largest number for any larger one.
template <class T>
void CheckByType(CLI::Option* option) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::integral<T>) {
    const std::string allowed = absl::StrCat(Limits::min(), " to ", Limits::max());
    option->transform(CLI::Validator(
        [allowed](std::string& text) {
          return CheckWholeNumber<T>(text, Limits::min(), Limits::max(), allowed);
        },
        "", kTypeCheck));
  } else if constexpr (std::floating_point<T>) {
    option->transform(CLI::Validator(
        [](std::string& text) {
          double value = 0;
          if (absl::SimpleAtod(text, &value) && std::abs(value) <= Limits::max()) {
            return std::string();
          }
          return absl::StrCat("'", text, "'; allowed: numbers, ", -Limits::max(), " to ",
                              Limits::max());
        },
        "", kTypeCheck));
  }
}

void DropCheckByType(CLI::Option* option) {
  try {
    option->get_validator(kTypeCheck)->active(false);
  } catch (const CLI::OptionNotFound&) {
    // A text.
  }
}

std::vector<Command> Handles(const std::vector<CLI::App*>& apps) {
  std::vector<Command> commands;
  for (CLI::App* app : apps) commands.emplace_back(app);
  return commands;
}

}  // namespace

// ---- Option -----------------------------------------------------------------------------------

Option Option::Required() const {
  option_->required();
  return *this;
}

Option Option::ShowDefault() const {
  option_->capture_default_str();
  return *this;
}

Option Option::ShowDefault(const std::string& text) const {
  option_->default_str(text);
  return *this;
}

Option Option::Group(const std::string& heading) const {
  option_->group(heading);
  return *this;
}

Option Option::Describe(const std::string& help) const {
  option_->description(help);
  return *this;
}

Option Option::WholeNumber(int64_t least, int64_t most) const {
  const std::string allowed =
      Allowed(absl::StrCat(least), absl::StrCat(most), most != std::numeric_limits<int64_t>::max());
  DropCheckByType(option_);
  option_->transform(CLI::Validator(
      [least, most, allowed](std::string& text) {
        return CheckWholeNumber<int64_t>(text, least, most, allowed);
      },
      allowed));
  return *this;
}

Option Option::AtLeast(int64_t least) const { return WholeNumber(least, most_); }

Option Option::RealNumber(double least, double most, OpenEnd open) const {
  const std::string allowed =
      Allowed(absl::StrCat(open == OpenEnd::kLeast ? "above " : "", least),
              absl::StrCat(open == OpenEnd::kMost ? "below " : "", most), true);
  DropCheckByType(option_);
  option_->check(CLI::Validator(
      [least, most, open, allowed](std::string& text) {
        double value = 0;
        const bool inside = absl::SimpleAtod(text, &value) && value >= least && value <= most;
        const bool at_open_end = (open == OpenEnd::kLeast && value == least) ||
                                 (open == OpenEnd::kMost && value == most);
        if (inside && !at_open_end) return std::string();
        return absl::StrCat("'", text, "'; allowed: numbers, ", allowed);
      },
      allowed));
  return *this;
}

Option Option::OneOf(const std::vector<std::string>& allowed) const {
  option_->check(CLI::IsMember(allowed));
  return *this;
}

Option Option::OneOfNumbers(const std::vector<int>& allowed) const {
  option_->check(CLI::IsMember(allowed));
  return *this;
}

Option Option::Check(std::function<std::string(const std::string&)> check) const {
  option_->check(std::move(check));
  return *this;
}

Option Option::OneValueEach() const {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::SplitAt(char delimiter) const {
  option_->delimiter(delimiter);
  return *this;
}

Option Option::Expect(int least, int most) const {
  option_->expected(least, most);
  return *this;
}

Option Option::Needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::Needs(const std::string& other) const {
  option_->needs(other);
  return *this;
}

Option Option::Excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::Excludes(const std::string& other) const {
  option_->excludes(other);
  return *this;
}

std::string Option::Description() const { return option_->get_description(); }

std::vector<std::string> Option::LongNames() const { return option_->get_lnames(); }

std::vector<std::string> Option::ShortNames() const { return option_->get_snames(); }

std::string Option::PositionalName() const {
  return option_->get_positional() ? option_->get_name(true) : std::string();
}

bool Option::TakesValue() const { return option_->get_items_expected_max() > 0; }

bool Option::TakesText() const { return option_->get_type_name().starts_with("TEXT"); }

bool Option::TakesList() const { return option_->get_items_expected_max() > 1; }

std::string Option::Problem(const std::string& value) const {
  for (int i = 0;; ++i) {
    CLI::Validator* check = nullptr;
    try {
      check = option_->get_validator(i);
    } catch (const CLI::OptionNotFound&) {
      return "";  // CLI11 does not tell their number
    }
    std::string text = value;
    if (std::string problem = (*check)(text); !problem.empty()) return problem;
  }
}

std::vector<std::string> Option::Values() const {
  if (Given()) return option_->results();
  const std::string shown = option_->get_default_str();
  return shown.empty() ? std::vector<std::string>() : std::vector<std::string>{shown};
}

bool Option::Given() const { return option_->count() > 0; }

// ---- Command ----------------------------------------------------------------------------------

Command Command::AddSubcommand(const std::string& name, const std::string& help) const {
  return Command(app_->add_subcommand(name, help));
}

Command Command::AddChoice(const std::string& heading) const {
  CLI::Option_group* const group = app_->add_option_group(heading);
  group->require_option(1);
  return Command(group);
}

template <OptionValue T>
CLI::Option* Command::AddOption(const std::string& name, T& value, const std::string& help) const {
  CLI::Option* const option = app_->add_option(name, value, help);
  CheckByType<typename ElementOf<T>::Type>(option);
  return option;
}

#define NIBBLE_ADD_OPTION(...)                                                            \
  template CLI::Option* Command::AddOption<__VA_ARGS__>(const std::string&, __VA_ARGS__&, \
                                                        const std::string&) const
NIBBLE_ADD_OPTION(std::string);
NIBBLE_ADD_OPTION(int32_t);
NIBBLE_ADD_OPTION(int64_t);
NIBBLE_ADD_OPTION(uint32_t);
NIBBLE_ADD_OPTION(uint64_t);
NIBBLE_ADD_OPTION(float);
NIBBLE_ADD_OPTION(double);
NIBBLE_ADD_OPTION(std::optional<std::string>);
NIBBLE_ADD_OPTION(std::optional<int32_t>);
NIBBLE_ADD_OPTION(std::optional<int64_t>);
NIBBLE_ADD_OPTION(std::vector<std::string>);
NIBBLE_ADD_OPTION(std::vector<int32_t>);
NIBBLE_ADD_OPTION(std::vector<int64_t>);
#undef NIBBLE_ADD_OPTION

Option Command::AddFlag(const std::string& name, bool& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}

Option Command::AddCall(const std::string& name, std::function<void(double)> set,
                        const std::string& help) const {
  return Option(app_->add_option_function<double>(name, std::move(set), help));
}

Option Command::AddCall(const std::string& name,
                        std::function<void(const std::vector<std::string>&)> set,
                        const std::string& help) const {
  return Option(app_->add_option_function<std::vector<std::string>>(name, std::move(set), help));
}

Command Command::RequireSubcommand() const {
  app_->require_subcommand(1);
  return *this;
}

Command Command::Footer(const std::string& text) const {
  app_->footer(text);
  return *this;
}

Command Command::OnParsed(std::function<void()> run) const {
  app_->callback(std::move(run));
  return *this;
}

std::string Command::Name() const { return app_->get_name(); }

std::string Command::Description() const { return app_->get_description(); }

std::string Command::Help(const std::string& path) const {
  // App::help would print the help of the subcommand that was parsed.
  return app_->get_formatter()->make_help(app_, path, CLI::AppFormatMode::Normal);
}

std::vector<Command> Command::Subcommands() const {
  return Handles(app_->get_subcommands(std::function<bool(CLI::App*)>()));
}

std::optional<Command> Command::FindSubcommand(const std::string& name) const {
  for (const Command& command : Subcommands()) {
    // The names of choices (AddChoice) are empty.
    if (!name.empty() && command.Name() == name) return command;
  }
  return std::nullopt;
}

std::vector<Option> Command::Options() const {
  std::vector<Option> options;
  for (CLI::Option* option : app_->get_options(std::function<bool(CLI::Option*)>())) {
    options.emplace_back(option);
  }
  return options;
}

std::optional<Option> Command::FindOption(const std::string& name) const {
  CLI::Option* const option = app_->get_option_no_throw(name);
  if (option == nullptr) return std::nullopt;
  return Option(option);
}

Command Command::Subcommand(const std::string& name) const {
  return Command(app_->get_subcommand(name));
}

Option Command::GetOption(const std::string& name) const { return Option(app_->get_option(name)); }

bool Command::Parsed() const { return app_->parsed(); }

std::vector<Command> Command::ParsedSubcommands() const { return Handles(app_->get_subcommands()); }

std::vector<std::string> Command::Unread() const { return app_->remaining(); }

// ---- CommandLine ------------------------------------------------------------------------------

CommandLine::CommandLine(const std::string& help, const std::string& name)
    : Command(new CLI::App(help, name)), owned_(app()) {}

CommandLine::~CommandLine() = default;

void CommandLine::SetVersion(const std::string& text) {
  app()->set_version_flag("--version", text);
}

std::optional<int> CommandLine::Parse(int argc, const char* const* argv, int usage_exit_code) {
  try {
    app()->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app()->exit(error) == 0 ? 0 : usage_exit_code;
  }
  return std::nullopt;
}

absl::StatusOr<CommandLine::Outcome> CommandLine::ParseWords(std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // as CLI11 takes a vector
  try {
    app()->parse(std::move(words));
  } catch (const CLI::Success& success) {
    app()->exit(success);
    return Outcome::kHelpPrinted;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return Outcome::kParsed;
}

}  // namespace nibble
