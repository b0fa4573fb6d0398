#include "client/local/job_command.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/local/command_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

Outcome Nibble(std::vector<std::string> arguments) { return RunCommand(AddJobCommand, arguments); }

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

constexpr char kSpec[] =
    "name: small\n"
    "model: tiny-hybrid\n"
    "changes: [{at: lr-decay, set: {fprop: bf16}, reason: to recover}]\n"
    "data: {train: [corpus.txt], sequence: 256}\n"
    "training: {steps: 1000, batch: 16, micro_batch: 8}\n";

TEST(JobCommandTest, DefaultsArePrintedAsAValidSpec) {
  const Outcome shown = Nibble({"job", "show-defaults"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.err, IsEmpty());
  EXPECT_TRUE(ParseJobSpec(shown.out).ok());
  EXPECT_EQ(Nibble({"job", "validate", WriteFile("defaults.yaml", shown.out)}).exit_code, 0);
}

TEST(JobCommandTest, AValidSpecIsToldWhatItAmountsTo) {
  const Outcome valid = Nibble({"job", "validate", WriteFile("valid.yaml", kSpec)});
  EXPECT_EQ(valid.exit_code, 0);
  EXPECT_THAT(valid.err, IsEmpty());
  EXPECT_THAT(valid.out, StartsWith("valid\njob         small\n"));
  for (const char* part :
       {"4096000 in 1000 steps of 4096 (16 sequences of 256)", "1 on cpu, 8 sequences at once",
        "wsd: 100 steps of warm-up to 0.001, falls to 1e-05 from step 800 (80 % of the run)",
        "every 100 steps on 1 % of the training texts' documents", "output      runs/small",
        "revision 1  from step 0 (0 % of the run)\n",
        "revision 2  from step 800 (80 % of the run): to recover\n",
        "            fprop: nvfp4 → bf16 in "}) {
    EXPECT_THAT(valid.out, HasSubstr(part));
  }
}

TEST(JobCommandTest, WhoseWeightsAJobBeginsWithIsTold) {
  const std::string newest =
      WriteFile("init.yaml", absl::StrCat(kSpec, "init_from: {job: base-run}\n"));
  EXPECT_THAT(Nibble({"job", "validate", newest}).out,
              HasSubstr("\nweights     of the newest good checkpoint of job base-run\n"));
  const std::string path =
      WriteFile("path.yaml", absl::StrCat(kSpec, "init_from: {path: runs/base, step: 20}\n"));
  EXPECT_THAT(Nibble({"job", "validate", path}).out,
              HasSubstr("\nweights     of the checkpoint of step 20 of runs/base\n"));
  const nlohmann::json report =
      nlohmann::json::parse(Nibble({"job", "validate", path, "-o", "json"}).out);
  EXPECT_EQ(report["init_from"], nlohmann::json({{"path", "runs/base"}, {"step", 20}}));
}

TEST(JobCommandTest, YamlSaysWhatJsonSays) {
  const Outcome valid = Nibble({"job", "validate", WriteFile("valid.yaml", kSpec), "-o", "yaml"});
  EXPECT_EQ(valid.exit_code, 0);
  EXPECT_THAT(valid.out, HasSubstr("\nrevisions:\n  - "));
}

TEST(JobCommandTest, JsonIsForPrograms) {
  const Outcome valid = Nibble({"job", "validate", WriteFile("valid.yaml", kSpec), "-o", "json"});
  EXPECT_EQ(valid.exit_code, 0);
  const nlohmann::json report = nlohmann::json::parse(valid.out);
  EXPECT_EQ(report["valid"], true);
  EXPECT_EQ(report["tokens"], 4096000);
  EXPECT_GT(report["parameters"], 500000);
  ASSERT_EQ(report["revisions"].size(), 2u);
  EXPECT_EQ(report["revisions"][1]["first_step"], 800);
  EXPECT_EQ(report["revisions"][1]["changes"].size(), 1u);
}

TEST(JobCommandTest, ASpecThatIsNotValidIsToldAllItsProblems) {
  const std::string path =
      WriteFile("bad.yaml", absl::StrCat(kSpec, "optimizer: {lr: -1}\ntrainng: 3\n"));
  const Outcome bad = Nibble({"job", "validate", path});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.out, IsEmpty());
  EXPECT_EQ(bad.err, absl::StrCat("nibble job validate: ", path,
                                  ": 2 problems:\n"
                                  "  line 6: optimizer.lr: -1 is not in [1.0e-12, 10]\n"
                                  "  line 7: trainng: unknown field, did you mean training?\n"));
}

TEST(JobCommandTest, AFileThatIsNotThereIsNotFound) {
  const Outcome none = Nibble({"job", "validate", "/no/such/file.yaml"});
  EXPECT_EQ(none.exit_code, 102);
  EXPECT_EQ(none.err,
            "nibble job validate: cannot open /no/such/file.yaml: No such file or directory\n");
}

TEST(JobCommandTest, WhatCannotBeReadIsAnError) {
  EXPECT_EQ(Nibble({"job", "validate", testing::TempDir()}).exit_code, 1);
  const Outcome huge =
      Nibble({"job", "validate", WriteFile("huge.yaml", std::string(kMaxJobBytes + 100, '#'))});
  EXPECT_EQ(huge.exit_code, 1);
  EXPECT_THAT(huge.err, HasSubstr("bytes; 1048576 are allowed"));
}

TEST(JobCommandTest, MisuseIsAUsageError) {
  EXPECT_EQ(Nibble({"job"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "validate"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "validate", "a", "-o", "xml"}).exit_code, 2);
  EXPECT_EQ(Nibble({"job", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble
