// The program as it is built: what it is linked with, and its completion in a real shell.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client_remote/remote_cluster.h"

namespace nibble {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kProgram[] = "client/nibble";

// What a shell says; fails the test where its exit code is another.
std::string Bash(const std::string& script, int exit_code = 0) {
  const std::string path = testing::TempDir() + "script.sh";
  std::ofstream(path) << script;
  std::FILE* const shell = popen(absl::StrCat("bash ", path, " 2>&1").c_str(), "r");
  std::string said;
  for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell)) said += static_cast<char>(c);
  const int status = pclose(shell);
  EXPECT_EQ(WEXITSTATUS(status), exit_code) << said;
  return said;
}

// What bash offers for the last of the words.
std::vector<std::string> Offers(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) absl::StrAppend(&line, " '", word, "'");
  // The program stands where the words say it does.
  const std::string said = Bash(absl::StrCat(
      "nibble() { ", std::filesystem::absolute(kProgram).string(), " \"$@\"; }\n",
      "source <(nibble completion bash) || exit 9\nCOMP_WORDS=(nibble", line,
      ")\nCOMP_CWORD=", words.size(), "\n_nibble\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"));
  return absl::StrSplit(said, '\n', absl::SkipEmpty());
}

TEST(ProgramTest, NothingOfProtocolBuffersIsSharedWithOtherLibraries) {
  const std::string program = std::filesystem::absolute(kProgram).string();
  EXPECT_THAT(Bash(absl::StrCat("readelf -d ", program, " | grep NEEDED")),
              Not(HasSubstr("libprotobuf")));
  // Mangled names: …N6google8protobuf….
  Bash(absl::StrCat("readelf --wide --dyn-syms ", program, " | grep google8protobuf"), 1);
}

TEST(ProgramTest, OneProgramTrainsATokenizerAndSpeaksToACoordinator) {
  RemoteCluster cluster;
  const std::string directory = testing::TempDir() + "tokens";
  std::filesystem::remove_all(directory);
  std::ofstream text(testing::TempDir() + "text.txt");
  for (int i = 0; i < 2000; ++i) text << "the quick brown fox " << i * 7919 % 1000 << " jumps.\n\n";
  text.close();
  Bash(absl::StrCat(kProgram, " data tokenize ", testing::TempDir(), "text.txt --output-dir ",
                    directory, " --train-tokenizer 300"));
  const std::string job = Bash(absl::StrCat(kProgram, " job submit ", RemoteCluster::SpecFile()));
  EXPECT_EQ(job, "train-1\n");
  EXPECT_THAT(Bash(absl::StrCat(kProgram, " job describe train-1 -o yaml")),
              HasSubstr("state: JOB_STATE_QUEUED"));
}

TEST(CompletionTest, NounsVerbsAndOptionsAreOffered) {
  EXPECT_THAT(Offers({"qu"}), ElementsAre("quantize", "queue"));
  EXPECT_THAT(Offers({"job", "c"}), UnorderedElementsAre("checkpoint", "cancel", "compare"));
  EXPECT_THAT(Offers({"job", "submit", "--max-"}),
              ElementsAre("--max-slots", "--max-restarts", "--max-backoff"));
  EXPECT_THAT(Offers({"worker", "list", "-o", ""}), ElementsAre("table", "json", "yaml"));
  EXPECT_THAT(Offers({"quantize", "--form"}), ElementsAre("--format", "--formula"));
  EXPECT_THAT(Offers({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
}

TEST(CompletionTest, NamesComeFromTheCluster) {
  RemoteCluster cluster;
  cluster.Submit("train");
  cluster.Submit("tiny");
  RunningWorker worker(cluster);
  worker.Run();
  EXPECT_THAT(Offers({"job", "describe", ""}), ElementsAre("tiny-2", "train-1"));
  EXPECT_THAT(Offers({"recipe", "set", "tr"}), ElementsAre("train-1"));
  EXPECT_THAT(Offers({"checkpoint", "list", "tin"}), Contains("tiny-2"));
  EXPECT_THAT(Offers({"worker", "drain", ""}), ElementsAre("w1"));
  EXPECT_THAT(Offers({"queue", "set", "d"}), ElementsAre("default"));
  // As bash divides an address.
  const std::string port = cluster.address().substr(cluster.address().rfind(':') + 1);
  unsetenv("NIBBLE_SERVER");
  EXPECT_THAT(Offers({"job", "kill", "--server", "127.0.0.1", ":", port, "ti"}),
              ElementsAre("tiny-2"));
}

TEST(CompletionTest, WhereNobodyAnswersThereAreNoNames) {
  RemoteCluster cluster;
  cluster.Stop();
  EXPECT_THAT(Offers({"job", "describe", ""}), IsEmpty());
  cluster.Start();
}

TEST(CompletionTest, OtherShellsHaveScriptsToo) {
  const std::string fish = RemoteCluster::Nibble({"completion", "fish"}).out;
  EXPECT_THAT(fish, HasSubstr("complete -c nibble -n __fish_use_subcommand -f -a job "));
  EXPECT_THAT(fish, HasSubstr("__fish_seen_subcommand_from submit' -l dry-run"));
  const std::string zsh = RemoteCluster::Nibble({"completion", "zsh"}).out;
  EXPECT_THAT(zsh, HasSubstr("#compdef nibble\n"));
  EXPECT_THAT(zsh, HasSubstr("bashcompinit"));
  EXPECT_EQ(RemoteCluster::Nibble({"completion", "tcsh"}).exit_code, 2);
}

}  // namespace
}  // namespace nibble
