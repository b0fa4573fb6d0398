#include "tests/trainer/trainer_process_testing.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/descriptor.h"
#include "common/process/spawn.h"

namespace nibble {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Runs its arguments after the first three: with a disk of $1 bytes at $2, visible to this process
// and its children only, on which a file of $3 bytes is.
constexpr char kOnDisk[] =
    R"(mount -t tmpfs -o "size=$1" tmpfs "$2" && fallocate -l "$3" "$2/ballast" &&
       shift 3 && exec "$@")";

// The words before a program that may mount. The program keeps the process id.
std::vector<std::string> WithOwnMounts() {
  if (geteuid() == 0) return {"/usr/bin/unshare", "--mount"};
  return {"/usr/bin/unshare", "--mount", "--map-root-user"};
}

}  // namespace

void TrainerProcess::SetUp() {
  root_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
  fs::remove_all(root_);
  fs::create_directories(root_);
  WriteCorpus(root_ / "corpus.txt", 60);
}

void TrainerProcess::TearDown() { fs::remove_all(root_); }

fs::path TrainerProcess::WriteSpec(const std::string& name, const Settings& s) const {
  const fs::path path = root_ / (name + ".yaml");
  std::ofstream out(path);
  out << "name: run\nmodel: tiny-hybrid\nrecipe: " << s.recipe << "\n"
      << "data: {train: [" << (root_ / "corpus.txt").string()
      << "], sequence: 128, validation_fraction: 0.1}\n"
      << "training: {steps: " << s.steps
      << ", batch: 4, micro_batch: 1, seed: 3, precision: " << s.precision
      << ", recompute: " << s.recompute << ", validate_every: 6, validation_batches: 1}\n"
      << "optimizer: {lr: 0.002, warmup_steps: 2, decay_fraction: 0.3333}\n"
      << "metrics: {log_every: 1, precision_every: 4}\n"
      << "resources: {ranks: " << s.ranks << ", threads: " << s.threads << ", device: " << s.device
      << ", sharding: " << s.sharding << "}\n"
      << "output: {directory: " << (root_ / name).string() << ", tensorboard: \"" << s.tensorboard
      << "\"}\n"
      << s.more;
  return path;
}

bool TrainerProcess::MayMount() const {
  std::string command = absl::StrJoin(WithOwnMounts(), " ");
  absl::StrAppend(&command, " mount -t tmpfs tmpfs ", root_.string(), " 2>&1");
  return Shell(command).code == 0;
}

pid_t TrainerProcess::Start(const std::string& name, const fs::path& spec,
                            const std::vector<std::string>& flags, int64_t disk_bytes) const {
  std::vector<std::string> words;
  if (disk_bytes > 0) {
    const std::string checkpoints = (root_ / name / "checkpoints").string();
    fs::create_directories(checkpoints);
    words = WithOwnMounts();
    words.insert(words.end(), {"/bin/sh", "-c", kOnDisk, "sh", absl::StrCat(disk_bytes),
                               checkpoints, absl::StrCat(disk_bytes - kLeftOnDisk)});
  }
  words.insert(words.end(), {BuiltProgram(program_), "--spec", spec.string()});
  words.insert(words.end(), flags.begin(), flags.end());
  const OwnedDescriptor log(
      open((root_ / (name + ".err")).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  // Throws if it does not start: GoogleTest reports that, and no test signals a wrong process.
  return SpawnProcess({.arguments = std::move(words),
                       .error = log.get(),
                       .group = SpawnOptions::Group::kOwn})
      .value();
}

void TrainerProcess::FreeDisk(const std::string& name, pid_t child) const {
  // The path inside the trainer's mount namespace.
  const std::string path = "/proc/" + std::to_string(child) + "/root" +
                           fs::absolute(root_ / name / "checkpoints/ballast").string();
  EXPECT_EQ(unlink(path.c_str()), 0) << path;
}

int TrainerProcess::Wait(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string TrainerProcess::Chatter(const std::string& name) const {
  return TextOf(root_ / (name + ".err"));
}

std::vector<json> TrainerProcess::Events(const std::string& name) const {
  return ReadEvents(root_ / name / "events.jsonl");
}

std::vector<json> TrainerProcess::Run(const std::string& name, const Settings& settings) const {
  EXPECT_EQ(Wait(Start(name, WriteSpec(name, settings))), 0) << Chatter(name);
  return Events(name);
}

std::vector<double> TrainerProcess::Losses(const std::vector<json>& events) {
  std::vector<double> losses;
  for (const json& event : EventsOf(events, "step")) losses.push_back(event.at("loss"));
  for (const json& event : EventsOf(events, "validation")) losses.push_back(event.at("loss"));
  return losses;
}

std::map<int64_t, double> TrainerProcess::LossByStep(const std::vector<json>& events) {
  std::map<int64_t, double> losses;
  for (const json& event : EventsOf(events, "step")) losses[event.at("step")] = event.at("loss");
  return losses;
}

}  // namespace nibble
