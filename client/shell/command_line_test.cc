#include "client/shell/command_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/shell/output.h"
#include "client/shell/testing.h"
#include "common/command_line/command_line.h"
#include "common/descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() : app_("Nibble", "nibble") {
    app_.RequireSubcommand();
    const Command job = app_.AddSubcommand("job", "Jobs");
    job.RequireSubcommand();
    const Command submit = job.AddSubcommand("submit", "Run a job");
    submit.Add("FILE", file_, "a spec").Required();
    submit.Add("--server", server_, "host:port");
    submit.Add("--priority", priority_, "higher first").WholeNumber(-1000, 1000);
    submit.AddFlag("--watch", watch_, "watch it");
    job.AddSubcommand("list", "Jobs").Add("--server", server_, "host:port");
    const Command worker = app_.AddSubcommand("worker", "Workers");
    worker.RequireSubcommand();
    worker.AddSubcommand("list", "Workers");
    app_.AddSubcommand("eval", "Loss of a model").Add("FILE", file_, "weights");
    AddHelpCommands(app_, exit_code_);
  }

  int RunUncaptured(std::vector<std::string> words) {
    words.insert(words.begin(), "nibble");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return RunCommandLine(app_, static_cast<int>(argv.size()), argv.data(), exit_code_);
  }
  int Run(const std::vector<std::string>& words) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = RunUncaptured(words);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  // The line on stderr of a command with a usage error.
  std::string Problem(const std::vector<std::string>& words) {
    EXPECT_EQ(Run(words), 2);
    EXPECT_EQ(out_, "");
    return err_;
  }

  CommandLine app_;
  int exit_code_ = 0;
  std::string file_, server_, out_, err_;
  int64_t priority_ = 0;
  bool watch_ = false;
};

TEST_F(CommandLineTest, TheServerOptionMayStandBeforeOrAfterTheVerb) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--server", "a:1", "job", "submit", "f"},
                                             {"job", "--server", "a:1", "submit", "f"},
                                             {"--server=a:1", "job", "submit", "f"},
                                             {"job", "submit", "f", "--server", "a:1"}}) {
    server_.clear();
    EXPECT_EQ(Run(words), 0) << err_;
    EXPECT_EQ(server_, "a:1");
    EXPECT_EQ(file_, "f");
  }
}

TEST_F(CommandLineTest, OutputThatIsLostIsAnError) {
  app_.AddSubcommand("print", "Prints").OnParsed([this] {
    exit_code_ = Finish("print", "table", Reply{.text = "text\n"});
  });
  std::fflush(stdout);
  const OwnedDescriptor before(dup(STDOUT_FILENO));
  const OwnedDescriptor full(open("/dev/full", O_WRONLY));
  ASSERT_EQ(dup2(full.get(), STDOUT_FILENO), STDOUT_FILENO);
  testing::internal::CaptureStderr();
  const int printed = RunUncaptured({"print"});
  const int helped = RunUncaptured({"help"});
  const int failed = ExitCodeOfOutput(kExitJobFailed);
  ASSERT_EQ(dup2(before.get(), STDOUT_FILENO), STDOUT_FILENO);
  std::clearerr(stdout);
  EXPECT_EQ(printed, kExitError);
  EXPECT_EQ(helped, kExitError);
  EXPECT_EQ(failed, kExitJobFailed);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "nibble print: cannot write to stdout: No space left on device\n"
            "nibble: cannot write to stdout: No space left on device\n");
}

TEST_F(CommandLineTest, WordsAfterTheVerbKeepTheirOrder) {
  EXPECT_THAT(OrderedWords(app_, {"job", "submit", "help", "--", "--server"}),
              ElementsAre("job", "submit", "help", "--", "--server"));
  EXPECT_THAT(OrderedWords(app_, {"eval", "list"}), ElementsAre("eval", "list"));
}

TEST_F(CommandLineTest, ErrorsSuggestTheNearestNounVerbOrOption) {
  EXPECT_EQ(Problem({"jbo", "list"}), "nibble: there is no 'jbo', did you mean 'job'?\n");
  EXPECT_EQ(Problem({"job", "sumbit", "f"}),
            "nibble job: there is no verb 'sumbit', did you mean 'submit'?\n");
  EXPECT_EQ(Problem({"job", "submit", "--prioriy", "5"}),
            "nibble job submit: there is no option '--prioriy', did you mean '--priority'?\n");
  EXPECT_EQ(Problem({"job", "submit", "f", "--wacth=1"}),
            "nibble job submit: there is no option '--wacth', did you mean '--watch'?\n");
}

TEST_F(CommandLineTest, WithoutANearNameErrorsListWhatExists) {
  EXPECT_EQ(Problem({"xyzzy"}), "nibble: there is no 'xyzzy'; 'nibble help' lists the nouns\n");
  EXPECT_EQ(Problem({"job", "xyzzy"}),
            "nibble job: there is no verb 'xyzzy'; its verbs are submit, list\n");
  EXPECT_EQ(Problem({"job"}), "nibble job: a verb is missing; its verbs are submit, list\n");
  EXPECT_EQ(Problem({"job", "list", "--xyzzy"}),
            "nibble job list: there is no option '--xyzzy'; 'nibble help job list' lists the "
            "options\n");
}

TEST_F(CommandLineTest, AVerbWithoutItsNounIsSuggestedWithNouns) {
  EXPECT_EQ(Problem({"submit", "f"}),
            "nibble: 'submit' needs a noun before it, did you mean 'nibble job submit'?\n");
  EXPECT_EQ(Problem({"list"}),
            "nibble: 'list' needs a noun before it, did you mean 'nibble job list' or 'nibble "
            "worker list'?\n");
}

TEST_F(CommandLineTest, ErrorsAboutNumbersStateTheRange) {
  for (const char* value : {"1001", "-1001", "99999999999999999999", "1.5", "many"}) {
    EXPECT_THAT(Problem({"job", "submit", "f", "--priority", value}),
                HasSubstr(std::string("--priority: '") + value +
                          "'; allowed: whole numbers, -1000 to 1000"));
  }
  EXPECT_EQ(Run({"job", "submit", "f", "--priority", "-1000"}), 0);
}

TEST_F(CommandLineTest, ErrorsAboutMissingArgumentsNameTheCommandAndItsHelp) {
  EXPECT_EQ(Problem({"job", "submit"}),
            "nibble job submit: FILE is required; see 'nibble help job submit'\n");
}

TEST_F(CommandLineTest, HelpCanBeRequestedInSeveralWays) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"help", "job", "submit"}, {"job", "submit", "--help"}}) {
    EXPECT_EQ(Run(words), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("--priority"));
    EXPECT_THAT(out_, HasSubstr("nibble job submit"));
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"help", "job"}, {"job", "help"}, {"job", "--help"}}) {
    EXPECT_EQ(Run(words), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("submit"));
  }
  EXPECT_EQ(Run({"help"}), 0);
  EXPECT_THAT(out_, HasSubstr("worker"));
  EXPECT_EQ(Run({"help", "jb"}), 2);
  EXPECT_EQ(err_, "nibble: there is no 'jb', did you mean 'job'?\n");
}

TEST_F(CommandLineTest, TheVersionIsPrinted) {
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_EQ(out_, "nibble 0.1.0\n");
}

TEST(YamlOfTest, ReadersReadTheWrittenValues) {
  const Json value = Json::parse(R"({
    "id": "train-7", "count": 3, "share": 0.25, "big": 9007199254740993, "on": true, "off": null,
    "texts": ["", "yes", "No", "12", "1e3", "- x", "a: b", "#x", " x", "x ", "a\"b\\", "null", "~",
              "tab\there", "naïve → text", "{", "[a]", "*", "&a", "!t", "%", "@", "`", "a #b", "=",
              "0x10", ".5", "-", "?", "a\u0001b"],
    "empty": [], "none": {}, "nested": {"list": [{"a": 1, "b": [1, 2]}, [3, [4]], {}], "k 2": {"x": {}}},
    "spec": "name: x\n  deeper: 1\n\nlast: 2\n", "no_end": "a\nb", "two_ends": "a\n\n",
    "begins": "\n a", "a\nkey": 1, "carriage": "a\r\nb"})");
  EXPECT_EQ(JsonOfYaml(YamlOf(value)), value) << YamlOf(value);
}

TEST(YamlOfTest, NumbersAreNumbersInYaml11And12) {
  EXPECT_EQ(YamlOf(Json::parse(R"({"lr":1e-05,"big":1e+22,"loss":2.5,"steps":100})")),
            "lr: 1.0e-05\nbig: 1.0e+22\nloss: 2.5\nsteps: 100\n");
}

TEST(YamlOfTest, CharactersThatReadersRefuseAreEscaped) {
  EXPECT_EQ(YamlOf(Json::parse(R"({"a":"x\u007f\u0085\ny","b":"\u2028","day":"2026-11-22"})")),
            "a: \"x\\x7f\\x85\\ny\"\nb: \"\\u2028\"\nday: \"2026-11-22\"\n");
}

TEST(YamlOfTest, TheStyleIsBlockStyle) {
  EXPECT_EQ(YamlOf(Json::parse(R"({"jobs":[{"id":"train-7","slots":[0,1]},{"id":"b"}],"x":[]})")),
            "jobs:\n"
            "  - id: train-7\n"
            "    slots:\n"
            "      - 0\n"
            "      - 1\n"
            "  - id: b\n"
            "x: []\n");
  EXPECT_EQ(YamlOf(Json::parse("[]")), "[]\n");
  EXPECT_EQ(YamlOf(Json::parse("\"7\"")), "\"7\"\n");
}

}  // namespace
}  // namespace nibble
