#include "common/command_line/command_line.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OptionsTest : public testing::Test {
 protected:
  // The error of the words; "" if they are accepted.
  std::string Problem(const std::vector<std::string>& words) {
    return std::string(program_.ParseWords(words).status().message());
  }

  CommandLine program_{"A program", "program"};
};

TEST_F(OptionsTest, ValuesOfEveryTypeAreParsed) {
  std::string text;
  int32_t small = 0;
  int64_t large = 0;
  uint64_t natural = 0;
  double real = 0;
  bool flag = false, inverse = true;
  std::optional<int64_t> given, missing;
  std::vector<std::string> words;
  std::vector<int32_t> numbers;
  program_.Add("TEXT", text, "");
  program_.Add("--small", small, "");
  program_.Add("-l,--large", large, "");
  program_.Add("--natural", natural, "");
  program_.Add("--real", real, "");
  program_.AddFlag("--flag", flag, "");
  program_.AddFlag("!--no-inverse", inverse, "");
  program_.Add("--given", given, "");
  program_.Add("--missing", missing, "");
  program_.Add("--word", words, "").OneValueEach();
  program_.Add("--numbers", numbers, "").SplitAt(',');
  EXPECT_EQ(
      Problem({"t", "--small", "-3", "-l", "5000000000", "--natural=7", "--real", "0.5", "--flag",
               "--no-inverse", "--given", "9", "--word", "a", "--word", "b", "--numbers", "1,2"}),
      "");
  EXPECT_EQ(text, "t");
  EXPECT_EQ(small, -3);
  EXPECT_EQ(large, 5'000'000'000);
  EXPECT_EQ(natural, 7u);
  EXPECT_EQ(real, 0.5);
  EXPECT_TRUE(flag);
  EXPECT_FALSE(inverse);
  EXPECT_EQ(given, 9);
  EXPECT_EQ(missing, std::nullopt);
  EXPECT_THAT(words, ElementsAre("a", "b"));
  EXPECT_THAT(numbers, ElementsAre(1, 2));
  EXPECT_TRUE(program_.GetOption("--large").Given());
  EXPECT_FALSE(program_.GetOption("--missing").Given());
  EXPECT_FALSE(program_.FindOption("--other"));
}

TEST_F(OptionsTest, ErrorsOfChecksStateWhatIsAllowed) {
  int32_t in_range = 0, at_least = 0;
  int64_t whole = 0;
  double real = 0;
  std::string letter, even;
  program_.Add("--range", in_range, "").InRange(1, 16);
  program_.Add("--least", at_least, "").AtLeast(3);
  program_.Add("--whole", whole, "").AtLeast(3);
  program_.Add("--real", real, "").RealNumber(0.5, 2);
  program_.Add("--above", real, "").AboveUpTo(0, 1);
  program_.Add("--below", real, "").FromToBelow(0, 1);
  program_.Add("--letter", letter, "").OneOf({"a", "b"});
  program_.Add("--even", even, "").Check([](const std::string& text) {
    return text.size() % 2 == 0 ? std::string() : "'" + text + "' is odd";
  });
  EXPECT_EQ(Problem({"--range", "16", "--least", "3", "--real", "2", "--letter", "b"}), "");
  EXPECT_EQ(Problem({"--range", "17"}), "--range: '17'; allowed: whole numbers, 1 to 16");
  EXPECT_EQ(Problem({"--least", "2"}), "--least: '2'; allowed: whole numbers, 3 to 2147483647");
  EXPECT_EQ(Problem({"--whole", "2"}), "--whole: '2'; allowed: whole numbers, 3 or more");
  EXPECT_EQ(Problem({"--real", "x"}), "--real: 'x'; allowed: numbers, 0.5 to 2");
  EXPECT_EQ(Problem({"--above", "0"}), "--above: '0'; allowed: numbers, above 0 to 1");
  EXPECT_EQ(Problem({"--below", "1"}), "--below: '1'; allowed: numbers, 0 to below 1");
  EXPECT_EQ(Problem({"--above", "1", "--below", "0"}), "");
  EXPECT_EQ(Problem({"--letter", "c"}), "--letter: c not in {a,b}");
  EXPECT_EQ(Problem({"--even", "abc"}), "--even: 'abc' is odd");
}

TEST_F(OptionsTest, NumbersThatTheVariableCannotHoldAreRefused) {
  int32_t small = 0;
  uint32_t natural = 0;
  uint64_t large = 0;
  double real = 0;
  float single = 0;
  std::optional<int64_t> optional;
  std::vector<int32_t> list;
  program_.Add("--small", small, "");
  program_.Add("--natural", natural, "");
  program_.Add("--large", large, "");
  program_.Add("--real", real, "");
  program_.Add("--single", single, "");
  program_.Add("--optional", optional, "");
  program_.Add("--list", list, "").SplitAt(',');
  const std::string of_large = "'; allowed: whole numbers, 0 to 18446744073709551615";
  EXPECT_EQ(Problem({"--large", "-1"}), "--large: '-1" + of_large);
  EXPECT_EQ(Problem({"--large", "18446744073709551616"}),
            "--large: '18446744073709551616" + of_large);
  EXPECT_EQ(Problem({"--large", "0x10"}), "--large: '0x10" + of_large);
  EXPECT_EQ(Problem({"--large", ""}), "--large: '" + of_large);
  EXPECT_EQ(Problem({"--natural", "4294967296"}),
            "--natural: '4294967296'; allowed: whole numbers, 0 to 4294967295");
  EXPECT_EQ(Problem({"--small", "1e3"}),
            "--small: '1e3'; allowed: whole numbers, -2147483648 to 2147483647");
  EXPECT_THAT(Problem({"--optional", "9223372036854775808"}), HasSubstr("9223372036854775807"));
  EXPECT_THAT(Problem({"--list", "1,x"}), HasSubstr("--list: 'x'; allowed: whole numbers"));
  EXPECT_THAT(Problem({"--real", "nan"}), HasSubstr("--real: 'nan'; allowed: numbers"));
  EXPECT_THAT(Problem({"--single", "1e39"}), HasSubstr("'1e39'; allowed: numbers, -3.40282e+38"));
  EXPECT_EQ(Problem({"--large", "18446744073709551615", "--small=-2147483648", "--real", "1e300"}),
            "");
  EXPECT_EQ(large, 18446744073709551615u);
  EXPECT_EQ(small, -2147483648);
}

TEST_F(OptionsTest, LeadingZerosDoNotMakeANumberOctal) {
  int64_t checked = 0, unchecked = 0;
  program_.Add("--checked", checked, "").InRange(1, 100);
  program_.Add("--unchecked", unchecked, "");
  EXPECT_EQ(Problem({"--checked", "010", "--unchecked", "010"}), "");
  EXPECT_EQ(checked, 10);
  EXPECT_EQ(unchecked, 10);
}

TEST_F(OptionsTest, OptionsRequireAndExcludeOthers) {
  bool a = false, b = false, c = false;
  std::string x, y;
  const Option first = program_.AddFlag("--a", a, "");
  program_.AddFlag("--b", b, "").Needs(first);
  program_.AddFlag("--c", c, "").Excludes("--a");
  const Command choice = program_.AddChoice("One of them");
  choice.Add("--x", x, "");
  choice.Add("--y", y, "");
  EXPECT_EQ(Problem({"--x", "1", "--a", "--b"}), "");
  EXPECT_EQ(Problem({"--x", "1", "--b"}), "--b requires --a");
  EXPECT_EQ(Problem({"--x", "1", "--a", "--c"}), "--a excludes --c");
  EXPECT_THAT(Problem({}), HasSubstr("--x"));
  EXPECT_THAT(Problem({"--x", "1", "--y", "2"}), HasSubstr("--y"));
}

TEST_F(OptionsTest, HelpShowsDefaultsAndGroups) {
  int32_t count = 7;
  program_.Add("--count", count, "how many").ShowDefault().Group("Sizes");
  program_.Footer("The end.");
  const std::string help = program_.Help("program");
  EXPECT_THAT(help, HasSubstr("Sizes:\n  --count INT=7"));
  EXPECT_THAT(help, HasSubstr("how many"));
  EXPECT_THAT(help, HasSubstr("The end."));
}

TEST(CommandLineProgramTest, TheGivenSubcommandRuns) {
  CommandLine program("A program", "program");
  program.RequireSubcommand();
  std::string ran;
  for (const char* name : {"one", "two"}) {
    program.AddSubcommand(name, "").OnParsed([&ran, name] { ran += name; });
  }
  ASSERT_TRUE(program.ParseWords({"two"}).ok());
  EXPECT_EQ(ran, "two");
  EXPECT_TRUE(program.Subcommand("two").Parsed());
  EXPECT_FALSE(program.Subcommand("one").Parsed());
  ASSERT_EQ(program.ParsedSubcommands().size(), 1u);
  EXPECT_EQ(program.ParsedSubcommands()[0].Name(), "two");
  EXPECT_FALSE(program.FindSubcommand("three"));
  program.AddChoice("a choice, which has no name");
  EXPECT_FALSE(program.FindSubcommand(""));
  EXPECT_FALSE(program.ParseWords({}).ok());
}

TEST(CommandLineProgramTest, ExitCodesDistinguishHelpFromUsageErrors) {
  CommandLine program("A program", "program");
  const auto parse = [&program](std::vector<const char*> argv) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const std::optional<int> code = program.Parse(static_cast<int>(argv.size()), argv.data(), 64);
    testing::internal::GetCapturedStdout();
    EXPECT_EQ(testing::internal::GetCapturedStderr().empty(), code != 64);
    return code;
  };
  EXPECT_EQ(parse({"program"}), std::nullopt);
  EXPECT_EQ(parse({"program", "--help"}), 0);
  EXPECT_EQ(parse({"program", "--unknown"}), 64);
  EXPECT_THAT(program.Unread(), ElementsAre("--unknown"));
}

}  // namespace
}  // namespace nibble
