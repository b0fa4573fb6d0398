// The programs of the last release and those of this tree in one cluster: either's coordinator with
// the other's daemons, ranks of both in one gang, one's command line with the other's coordinator,
// and stores that the other opens. upgrade.sh gives the release's programs.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cluster/cluster_files.h"
#include "common/process/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/clerk.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/pods.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// The programs of the last release, in one directory.
std::string ReleaseDirectory() {
  const char* const directory = std::getenv("NIBBLE_RELEASE_PROGRAMS");
  return directory == nullptr ? "" : directory;
}
ClusterPrograms ReleasePrograms() {
  const std::string directory = ReleaseDirectory();
  return {.coordinator = directory + "/nibble-coordinator",
          .worker = directory + "/nibble-worker",
          .trainer = directory + "/nibble-trainer"};
}
// How the release's programs name their version.
std::string ReleaseCommit() {
  for (const absl::string_view line :
       absl::StrSplit(TextOf(BuiltProgram("tests/upgrade/RELEASE")), '\n')) {
    if (!line.empty() && line[0] != '#') return std::string(line.substr(0, 12));
  }
  return "no commit";
}

// A command of one of the command lines, about the bed's cluster, with its errors.
ShellResult Command(const ClusterBed& bed, const std::string& program, const std::string& words) {
  return Shell(absl::StrCat("NIBBLE_SERVER=", bed.address(), " ", program, " ", words, " 2>&1"));
}

class Upgrade : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(ReleasePrograms().coordinator))
        << "NIBBLE_RELEASE_PROGRAMS='" << ReleaseDirectory()
        << "' has no programs; tests/upgrade/upgrade.sh builds them";
  }

  // Three workers with a slot each: gangs of two are always on two workers.
  static ClusterBed::Options Of(const ClusterPrograms& programs) {
    return {.workers = 3, .programs = programs};
  }
  static const TinyJob& Spec() {
    // Trains until it is cancelled, however long the test takes.
    static const TinyJob spec = {.ranks = 2, .steps = 1'000'000, .every = 200, .decay_fraction = 0};
    return spec;
  }
  static bool IsRelease(const v1::Worker& worker) {
    return worker.identity().version().find(ReleaseCommit()) != std::string::npos;
  }
  static int WorkersOfRelease(ClusterBed& bed) {
    int workers = 0;
    const v1::ListWorkersResponse listed = bed.Ask(kListWorkers);
    for (const v1::Worker& one : listed.workers()) workers += IsRelease(one) ? 1 : 0;
    return workers;
  }
  // Everything between a coordinator and its daemons that training alone does not need. Meanwhile
  // `paused` makes no steps.
  static void ExpectServes(ClusterBed& bed, const std::string& paused) {
    (void)bed.AskAbout(paused, kPauseJob);
    bed.ExpectState(paused, v1::JOB_STATE_PAUSED);
    const TinyJob spec = {.name = "served", .steps = 1'000'000, .every = 50};
    const std::string job = bed.Submit(spec);
    bed.ExpectStep(job, 20);
    v1::SetRecipeRequest change = RecipeChange(job, "fprop", "bf16");
    change.set_expected_revision(1);
    EXPECT_EQ(bed.Ask(kSetRecipe, change).revision(), 2);
    bed.ExpectSeen(job, [](const JobWatch::Seen& seen) {
      return seen.job.revision_in_force() == 2 && !seen.samples.empty();
    });
    bed.ExpectCopied(job);
    (void)bed.AskAbout(job, kPauseJob);
    bed.ExpectState(job, v1::JOB_STATE_PAUSED);
    (void)bed.AskAbout(job, kResumeJob);
    bed.ExpectState(job, v1::JOB_STATE_RUNNING);
    // Either's command line.
    for (const std::string& program : {NibbleProgram(), ReleaseDirectory() + "/nibble"}) {
      for (const std::string& words :
           {absl::StrCat("job describe ", job), absl::StrCat("job events ", job),
            absl::StrCat("job logs ", job, " --tail 5"), absl::StrCat("checkpoint list ", job),
            absl::StrCat("recipe history ", job), std::string("worker list"),
            std::string("worker describe worker-1"), std::string("job list -o json")}) {
        const ShellResult ran = Command(bed, program, words);
        EXPECT_EQ(ran.code, 0) << program << " " << words << ": " << ran.text;
        EXPECT_THAT(ran.text, Not(testing::IsEmpty())) << program << " " << words;
      }
    }
    (void)bed.AskAbout(job, kCancelJob);
    bed.ExpectState(job, v1::JOB_STATE_CANCELLED);
    const fs::path model = bed.root() + "/model-" + bed.NewId();
    const ShellResult exported =
        Command(bed, NibbleProgram(), absl::StrCat("checkpoint export ", job, " ", model.string()));
    EXPECT_EQ(exported.code, 0) << exported.text;
    EXPECT_TRUE(fs::exists(model / "config.json")) << exported.text;
    (void)bed.AskAbout(paused, kResumeJob);
    bed.ExpectProgress(paused);
  }
  static void ExpectNoLostStep(ClusterBed& bed, const std::string& job) {
    bed.ExpectUndisturbedUntilCancelled(job, Spec());
    bed.ExpectEachStepOnce(job);
  }
  // Replaces the process, as its pod, by one of these programs.
  static void Replace(ClusterBed& bed, const std::string& role, const ClusterPrograms& programs) {
    StopPod(bed, role);
    bed.SetPrograms(programs);
    StartPod(bed, role);
  }
};

TEST_F(Upgrade, TheCoordinatorThenTheDaemonsWhileAJobTrains) {
  ClusterBed bed(Of(ReleasePrograms()));
  const std::string job = bed.Submit(Spec());
  Clerk clerk(bed);
  bed.ExpectStep(job, 20);
  EXPECT_EQ(WorkersOfRelease(bed), 3);
  const auto ranks = bed.LiveRanks();
  Replace(bed, kCoordinatorRole, TestPrograms());
  bed.ExpectProgress(job);
  for (const ClusterBed::Rank& rank : ranks) EXPECT_TRUE(IsAlive(rank.process)) << bed.Story(job);
  ExpectServes(bed, job);
  for (int number = 3; number >= 1; --number) {
    Replace(bed, WorkerRole(number), TestPrograms());
    bed.ExpectProgress(job);
    EXPECT_EQ(WorkersOfRelease(bed), number - 1);
  }
  EXPECT_GT(clerk.ExpectNothingLost(job), 0);
  ExpectNoLostStep(bed, job);
}

TEST_F(Upgrade, TheDaemonsThenTheCoordinatorWhileAJobTrains) {
  ClusterBed bed(Of(ReleasePrograms()));
  const std::string job = bed.Submit(Spec());
  Clerk clerk(bed);
  bed.ExpectStep(job, 20);
  for (int number = 3; number >= 1; --number) {
    Replace(bed, WorkerRole(number), TestPrograms());
    bed.ExpectProgress(job);
  }
  EXPECT_EQ(WorkersOfRelease(bed), 0);
  ExpectServes(bed, job);
  Replace(bed, kCoordinatorRole, TestPrograms());
  bed.ExpectProgress(job);
  EXPECT_GT(clerk.ExpectNothingLost(job), 0);
  ExpectNoLostStep(bed, job);
}

// The version that a store's marker names; 0 if it names none.
int StoreVersion(const fs::path& store) {
  int version = 0;
  for (const absl::string_view line : absl::StrSplit(TextOf(store / "STORE"), '\n')) {
    const std::pair<std::string, std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (words.first == "version") (void)absl::SimpleAtoi(words.second, &version);
  }
  return version;
}

// Starts the release's coordinator on the store, and waits for its end.
ShellResult OpenWithRelease(const fs::path& store) {
  return Shell(absl::StrCat("timeout 60 ", ReleasePrograms().coordinator, " --store ",
                            store.string(),
                            " --cluster local --listen 127.0.0.1:0 --http '' 2>&1"));
}

// The coordinator goes back before a daemon was replaced: what newer daemons report of themselves,
// and the specs in newer ranks' checkpoints, may have fields that older programs refuse.
TEST_F(Upgrade, TheReleaseRefusesAStoreOfANewerFormatByNameAndTheSameFormatGoesBack) {
  ClusterBed bed(Of(ReleasePrograms()));
  const std::string job = bed.Submit(Spec());
  bed.ExpectStep(job, 20);
  const fs::path store = bed.cluster().paths().Data(kCoordinatorRole);
  const int old_version = StoreVersion(store);
  ASSERT_GT(old_version, 0) << TextOf(store / "STORE");
  Replace(bed, kCoordinatorRole, TestPrograms());
  ExpectServes(bed, job);
  StopPod(bed, kCoordinatorRole);
  const int new_version = StoreVersion(store);

  const fs::path newer = bed.root() + "/newer";
  fs::copy(store, newer, fs::copy_options::recursive);
  if (new_version == old_version) {
    // The format has not moved on yet: as if it had.
    std::ofstream(newer / "STORE") << absl::StrReplaceAll(
        TextOf(store / "STORE"),
        {{absl::StrCat("version ", old_version), absl::StrCat("version ", old_version + 1)}});
  }
  const ShellResult refused = OpenWithRelease(newer);
  EXPECT_EQ(refused.code, 1) << refused.text;
  EXPECT_THAT(refused.text,
              HasSubstr(absl::StrCat("the store has format version ", StoreVersion(newer),
                                     ", this program knows up to ", old_version)));

  if (new_version > old_version) return;
  bed.SetPrograms(ReleasePrograms());
  StartPod(bed, kCoordinatorRole);
  bed.ExpectProgress(job);
  ExpectNoLostStep(bed, job);
}

}  // namespace
}  // namespace nibble
