#include "settings/settings_file.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line/command_line.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A program with an option of each kind.
struct Program {
  Program() {
    app.Add("--store", store, "directory").Required();
    app.Add("--copies", copies, "workers per shard").InRange(1, 16).ShowDefault();
    app.Add("--hang-factor", factor, "multiple of a step").InRange(2.0, 1e6).ShowDefault();
    app.Add("--device", device, "kind of slot").OneOf({"cpu", "cuda"}).ShowDefault();
    app.Add("--http", http, "host:port").ShowDefault();
    app.Add("--label", labels, "KEY=VALUE");
    app.AddFlag("--insecure", insecure, "no authentication");
    app.AddFlag("--restored", restored, "a new epoch");
  }

  std::optional<int> Parse(std::vector<std::string> words) {
    std::vector<const char*> argv = {"program"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const auto ended = ParseWithSettings(app, rules, static_cast<int>(argv.size()), argv.data(), 2);
    out = testing::internal::GetCapturedStdout();
    error = testing::internal::GetCapturedStderr();
    return ended;
  }

  CommandLine app{"A program", "program"};
  const SettingsRules rules{.command_line_only = {"restored"}};
  std::string store, device = "cpu", http = "127.0.0.1:1";
  int32_t copies = 2;
  double factor = 20;
  std::vector<std::string> labels;
  bool insecure = false, restored = false;
  std::string out, error;
};

std::string Written(const file_testing::TempDirectory& directory, const std::string& text) {
  const std::string path = directory.Path("settings.yaml");
  std::ofstream(path) << text;
  return path;
}

// The error of a file with this text, without its path.
std::string Problem(const std::string& yaml) {
  Program program;
  return std::string(SettingsWords(program.app, program.rules, yaml, {}).status().message());
}

TEST(SettingsFile, SetsOptionsOfEveryKind) {
  const file_testing::TempDirectory directory;
  Program program;
  const std::string path = Written(directory,
                                   "# a comment\nstore: /var/lib/nibble\ncopies: 3\n"
                                   "hang-factor: 2.5\ndevice: \"cuda\"\nhttp: ''\n"
                                   "label: [rack=a, zone=b]\ninsecure: true\n");
  ASSERT_EQ(program.Parse({"--config", path}), std::nullopt) << program.error;
  EXPECT_EQ(program.store, "/var/lib/nibble");
  EXPECT_EQ(program.copies, 3);
  EXPECT_EQ(program.factor, 2.5);
  EXPECT_EQ(program.device, "cuda");
  EXPECT_EQ(program.http, "");
  EXPECT_THAT(program.labels, ElementsAre("rack=a", "zone=b"));
  EXPECT_TRUE(program.insecure);
  EXPECT_TRUE(program.app.GetOption("--http").Given());
}

TEST(SettingsFile, AFlagOverridesItAndAListReplacesItsList) {
  const file_testing::TempDirectory directory;
  Program program;
  const std::string path =
      Written(directory, "store: /a\ncopies: 3\ninsecure: true\nlabel: [rack=a, zone=b]\n");
  ASSERT_EQ(
      program.Parse({"--config=" + path, "--copies", "5", "--insecure=false", "--label", "rack=c"}),
      std::nullopt)
      << program.error;
  EXPECT_EQ(program.store, "/a");
  EXPECT_EQ(program.copies, 5);
  EXPECT_FALSE(program.insecure);
  EXPECT_THAT(program.labels, ElementsAre("rack=c"));
}

TEST(SettingsFile, ReportsAllProblemsWithLineNameValueAndBound) {
  const file_testing::TempDirectory directory;
  Program program;
  const std::string path = Written(directory,
                                   "store: /a\ncopis: 3\nhang-factor: 1\ncopies: many\n"
                                   "device: tpu\ninsecure: 1\nstore: /b\nhttp:\nlabel: {a: b}\n"
                                   "restored: true\nzzz: 1\n");
  EXPECT_EQ(program.Parse({"--config", path}), 2);
  EXPECT_THAT(program.error, StartsWith(path + ": 10 problems:\n  line 2: "));
  for (const char* const line : {
           "line 2: copis: unknown setting, did you mean copies?",
           "line 3: hang-factor: '1'; allowed: numbers, 2 to 1e+06",
           "line 4: copies: 'many'; allowed: whole numbers, 1 to 16",
           "line 5: device: tpu not in {cpu,cuda}",
           "line 6: insecure: ",
           "line 7: store: given twice, first in line 1",
           "line 8: http: has no value",
           "line 9: label: a map is not a single value",
           "line 10: restored: is for one start: give it on the command line",
       }) {
    EXPECT_THAT(program.error, HasSubstr(line));
  }
  EXPECT_EQ(Problem("zzz: 1\n"),
            "line 1: zzz: unknown setting; known: store, copies, hang-factor, device, http, label, "
            "insecure");
}

TEST(SettingsFile, RefusesWhatIsNotAMapAndAMissingFile) {
  EXPECT_THAT(Problem("- a\n- b\n"), HasSubstr("a list is not a map of settings"));
  EXPECT_THAT(Problem("a: b: c\n"), HasSubstr("line 1"));
  EXPECT_EQ(Problem(""), "");
  Program program;
  EXPECT_EQ(program.Parse({"--config", "/nowhere/settings.yaml"}), 2);
  EXPECT_THAT(program.error, HasSubstr("/nowhere/settings.yaml"));
}

TEST(SettingsFile, AProblemOfAnOverriddenSettingIsStillReported) {
  const file_testing::TempDirectory directory;
  Program program;
  EXPECT_EQ(program.Parse({"--copies", "2", "--config", Written(directory, "copies: 99\n")}), 2);
  EXPECT_THAT(program.error, HasSubstr("line 1: copies: '99'; allowed: whole numbers, 1 to 16"));
}

TEST(SettingsFile, PrintedSettingsReadBackAsTheSame) {
  const file_testing::TempDirectory directory;
  Program first;
  const std::string path =
      Written(directory, "store: '007'\nlabel: [a=1, 'b=#2']\ninsecure: true\nhang-factor: 2.5\n");
  ASSERT_EQ(first.Parse({"--config", path, "--copies", "4", "--print-config"}), 0) << first.error;
  EXPECT_THAT(first.out, HasSubstr("\n# workers per shard\ncopies: 4\n"));
  EXPECT_THAT(first.out, HasSubstr("http: \"127.0.0.1:1\"\n"));
  EXPECT_THAT(first.out, Not(HasSubstr("restored")));
  Program second;
  ASSERT_EQ(second.Parse({"--config", Written(directory, first.out), "--print-config"}), 0)
      << second.error;
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(second.store, "007");
  EXPECT_THAT(second.labels, ElementsAre("a=1", "b=#2"));
  Program bare;
  ASSERT_EQ(bare.Parse({"--store", "/a", "--print-config"}), 0);
  EXPECT_THAT(bare.out, HasSubstr("# Not set: label\n"));
}

TEST(SettingsFile, HelpIsPrintedWithoutReadingTheFile) {
  Program program;
  EXPECT_EQ(program.Parse({"--config", "/nowhere", "--help"}), 0);
  EXPECT_THAT(program.out, HasSubstr("--print-config"));
}

TEST(SettingsFile, AMissingRequiredOptionIsAnErrorWithAFileToo) {
  const file_testing::TempDirectory directory;
  Program program;
  EXPECT_EQ(program.Parse({"--config", Written(directory, "copies: 2\n")}), 2);
  EXPECT_THAT(program.error, HasSubstr("--store"));
}

}  // namespace
}  // namespace nibble
