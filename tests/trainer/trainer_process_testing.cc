#include "tests/trainer/trainer_process_testing.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace nibble {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string Trainer() {
  return std::string(std::getenv("TEST_SRCDIR")) + "/" + std::getenv("TEST_WORKSPACE") +
         "/worker/trainer/loop/nibble-trainer";
}

// A text with learnable structure: sentences of few words.
void WriteCorpus(const fs::path& path) {
  std::ofstream out(path);
  const char* words[] = {"the ", "cat ", "saw ", "a ", "dog ", "and ", "ran ", "home "};
  unsigned state = 1;
  for (int document = 0; document < 60; ++document) {
    for (int i = 0; i < 300; ++i) {
      state = state * 1664525u + 1013904223u;
      out << words[state >> 29];
      if (i % 60 == 59) out << "\n";
    }
    out << "\n\n";
  }
}

constexpr char kBallast[] = "/ballast";

// The mount is visible to this process and its children only.
bool MountDisk(const std::string& path, int64_t bytes, int64_t left) {
  const int spaces = CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
  const std::string size = "size=" + std::to_string(bytes);
  if (unshare(spaces) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", path.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    return false;
  }
  const int file = open((path + kBallast).c_str(), O_WRONLY | O_CREAT, 0600);
  return file >= 0 && posix_fallocate(file, 0, bytes - left) == 0 && close(file) == 0;
}

}  // namespace

void TrainerProcess::SetUp() {
  root_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
  fs::remove_all(root_);
  fs::create_directories(root_);
  WriteCorpus(root_ / "corpus.txt");
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
      << ", validate_every: 6, validation_batches: 1}\n"
      << "optimizer: {lr: 0.002, warmup_steps: 2, decay_fraction: 0.3333}\n"
      << "metrics: {log_every: 1, precision_every: 4}\n"
      << "resources: {ranks: " << s.ranks << ", threads: " << s.threads << "}\n"
      << "output: {directory: " << (root_ / name).string() << "}\n"
      << s.more;
  return path;
}

pid_t TrainerProcess::Start(const std::string& name, const fs::path& spec,
                            const std::vector<std::string>& flags, int64_t disk_bytes) const {
  const std::string trainer = Trainer();
  const std::string log = (root_ / (name + ".err")).string();
  std::vector<std::string> words = {trainer, "--spec", spec.string()};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string checkpoints = (root_ / name / "checkpoints").string();
  if (disk_bytes > 0) fs::create_directories(checkpoints);
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    if (std::freopen(log.c_str(), "a", stderr) == nullptr) _exit(120);
    if (disk_bytes > 0 && !MountDisk(checkpoints, disk_bytes, kLeftOnDisk)) _exit(kNoSuchDisk);
    execv(trainer.c_str(), argv.data());
    _exit(121);
  }
  return child;
}

void TrainerProcess::FreeDisk(const std::string& name, pid_t child) const {
  // The path inside the trainer's mount namespace.
  const std::string path = "/proc/" + std::to_string(child) + "/root" +
                           fs::absolute(root_ / name / "checkpoints").string() + kBallast;
  EXPECT_EQ(unlink(path.c_str()), 0) << path;
}

int TrainerProcess::Wait(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string TrainerProcess::Chatter(const std::string& name) const {
  std::ifstream in(root_ / (name + ".err"));
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<json> TrainerProcess::Events(const std::string& name) const {
  std::ifstream in(root_ / name / "events.jsonl");
  std::vector<json> events;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    events.push_back(json::parse(line));
  }
  return events;
}

std::vector<json> TrainerProcess::Run(const std::string& name, const Settings& settings) const {
  EXPECT_EQ(Wait(Start(name, WriteSpec(name, settings))), 0) << Chatter(name);
  return Events(name);
}

std::vector<json> TrainerProcess::Of(const std::vector<json>& events, const std::string& kind) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event.at("event") == kind) found.push_back(event);
  }
  return found;
}

std::vector<double> TrainerProcess::Losses(const std::vector<json>& events) {
  std::vector<double> losses;
  for (const json& event : Of(events, "step")) losses.push_back(event.at("loss"));
  for (const json& event : Of(events, "validation")) losses.push_back(event.at("loss"));
  return losses;
}

std::map<int64_t, double> TrainerProcess::LossByStep(const std::vector<json>& events) {
  std::map<int64_t, double> losses;
  for (const json& event : Of(events, "step")) losses[event.at("step")] = event.at("loss");
  return losses;
}

}  // namespace nibble
