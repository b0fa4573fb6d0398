// nibble-trainer as people run it: a spec in, an event log out.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace nibble {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kSteps = 12;
constexpr int kDecayFirst = 8;  // of 12 steps, the last third decays

std::string Trainer() {
  return std::string(std::getenv("TEST_SRCDIR")) + "/" + std::getenv("TEST_WORKSPACE") +
         "/worker/trainer/loop/nibble-trainer";
}

// A text with something to learn: sentences of few words.
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

class TrainerProcess : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_);
    WriteCorpus(root_ / "corpus.txt");
  }
  void TearDown() override { fs::remove_all(root_); }

  struct Settings {
    int ranks = 1;
    int threads = 1;
    int steps = kSteps;
    std::string recipe = "nvfp4";
    std::string precision = "bf16";
    std::string more;  // further lines of YAML
  };
  fs::path WriteSpec(const std::string& name, const Settings& s) const {
    const fs::path path = root_ / (name + ".yaml");
    std::ofstream out(path);
    out << "name: " << name << "\nmodel: tiny-hybrid\nrecipe: " << s.recipe << "\n"
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

  pid_t Start(const fs::path& spec, const fs::path& chatter) const {
    const std::string trainer = Trainer();
    const std::string path = spec.string();
    const std::string log = chatter.string();
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen(log.c_str(), "w", stderr) == nullptr) _exit(120);
      execl(trainer.c_str(), trainer.c_str(), "--spec", path.c_str(), nullptr);
      _exit(121);
    }
    return child;
  }
  static int Wait(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string Chatter(const std::string& name) const {
    std::ifstream in(root_ / (name + ".err"));
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // The whole lines so far: a trainer that still runs may be in the middle of its last one.
  std::vector<json> Events(const std::string& name) const {
    std::ifstream in(root_ / name / "events.jsonl");
    std::vector<json> events;
    for (std::string line; std::getline(in, line) && !in.eof();) {
      events.push_back(json::parse(line));
    }
    return events;
  }
  std::vector<json> Run(const std::string& name, const Settings& settings) const {
    const pid_t child = Start(WriteSpec(name, settings), root_ / (name + ".err"));
    EXPECT_EQ(Wait(child), 0) << Chatter(name);
    return Events(name);
  }

  static std::vector<json> Of(const std::vector<json>& events, const std::string& kind) {
    std::vector<json> found;
    for (const json& event : events) {
      if (event.at("event") == kind) found.push_back(event);
    }
    return found;
  }
  static std::vector<double> Losses(const std::vector<json>& events) {
    std::vector<double> losses;
    for (const json& event : Of(events, "step")) losses.push_back(event.at("loss"));
    for (const json& event : Of(events, "validation")) losses.push_back(event.at("loss"));
    return losses;
  }

  fs::path root_;
};

TEST_F(TrainerProcess, TheSameSpecGivesTheSameLossesTwiceWhateverTheThreads) {
  const std::vector<double> first = Losses(Run("first", {.threads = 1}));
  ASSERT_EQ(first.size(), kSteps + 2u);
  EXPECT_LT(first[kSteps - 1], first[0]);
  EXPECT_EQ(first, Losses(Run("second", {.threads = 1})));
  EXPECT_EQ(first, Losses(Run("third", {.threads = 3})));
}

TEST_F(TrainerProcess, TheSameRanksGiveTheSameLossesTwice) {
  EXPECT_EQ(Losses(Run("first", {.ranks = 2})), Losses(Run("second", {.ranks = 2})));
}

// The ranks see the same sequences in the same micro-batches, draw the same random bits and find
// the same tensor scales; what differs is the order in which FP32 gradients are added. A sum of n
// terms moves by about sqrt(n) · 2^-24 of its terms, which AdamW's division by sqrt(v) takes to a
// like share of the learning rate per weight and step: around 1e-6 of the loss over these few steps
// in FP32. In NVFP4 a weight near a rounding boundary may fall to the other side, which shows as
// quantisation noise of single weights.
TEST_F(TrainerProcess, OneTwoAndFourRanksAgreeWithinTheNoiseOfFp32Sums) {
  for (const auto& [recipe, precision, bound] :
       {std::tuple("bf16", "fp32", 1e-5), std::tuple("nvfp4", "bf16", 5e-3)}) {
    const std::string tag = recipe;
    const std::vector<double> one =
        Losses(Run(tag + "1", {.recipe = recipe, .precision = precision}));
    for (const int ranks : {2, 4}) {
      const std::vector<double> more = Losses(Run(
          tag + std::to_string(ranks), {.ranks = ranks, .recipe = recipe, .precision = precision}));
      ASSERT_EQ(more.size(), one.size());
      // Before any update nothing has been summed over ranks but the loss itself, in FP64.
      EXPECT_NEAR(more[0] / one[0], 1.0, 1e-12) << tag << ranks;
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(more[i] / one[i], 1.0, bound) << tag << ranks << " at " << i;
      }
    }
  }
}

TEST_F(TrainerProcess, APlannedChangeIsInForceFromTheDecayOnAllRanks) {
  const std::string change = "changes: [{at: lr-decay, set: {fprop: bf16}, reason: test}]\n";
  for (const int ranks : {1, 2}) {
    const std::string name = "ranks" + std::to_string(ranks);
    const std::vector<json> events = Run(name, {.ranks = ranks, .more = change});
    const std::vector<json> revisions = Of(events, "revision");
    ASSERT_EQ(revisions.size(), 2u);
    EXPECT_EQ(revisions[0].at("step"), 0);
    EXPECT_EQ(revisions[1].at("step"), kDecayFirst);
    EXPECT_EQ(revisions[1].at("reason"), "test");
    EXPECT_FALSE(revisions[1].at("changes").empty());
    for (const json& step : Of(events, "step")) {
      EXPECT_EQ(step.at("revision"), step.at("step") < kDecayFirst ? 1 : 2);
    }
    // No quantised operand of Fprop is left to report on; those of Wgrad are.
    bool fprop = false;
    bool wgrad = false;
    for (const json& event : Of(events, "precision")) {
      if (event.at("step") < kDecayFirst) continue;
      const std::string operand = event.at("operand");
      fprop |= operand.starts_with("fprop");
      wgrad |= operand.starts_with("wgrad");
    }
    EXPECT_FALSE(fprop);
    EXPECT_TRUE(wgrad);
  }
}

TEST_F(TrainerProcess, ATermSignalStopsAllRanksAtOneStepAndSaysSo) {
  const pid_t child =
      Start(WriteSpec("stopped", {.ranks = 2, .steps = 1000000}), root_ / "stopped.err");
  // Until a few steps are in the log; the test's own timeout bounds the wait.
  while (Of(Events("stopped"), "step").size() < 3) std::this_thread::yield();
  ASSERT_EQ(kill(child, SIGTERM), 0);
  EXPECT_EQ(Wait(child), 101) << Chatter("stopped");
  const std::vector<json> finish = Of(Events("stopped"), "finish");
  ASSERT_EQ(finish.size(), 1u);
  EXPECT_EQ(finish[0].at("reason"), "stopped");
  EXPECT_EQ(finish[0].at("steps").get<int>(),
            Of(Events("stopped"), "step").back().at("step").get<int>() + 1);
}

TEST_F(TrainerProcess, ABadSpecIsRefusedBeforeAnythingIsWritten) {
  const pid_t child = Start(WriteSpec("bad", {.recipe = "nvpf4"}), root_ / "bad.err");
  EXPECT_EQ(Wait(child), 2);
  EXPECT_NE(Chatter("bad").find("nvfp4"), std::string::npos) << Chatter("bad");
  EXPECT_FALSE(fs::exists(root_ / "bad"));
}

TEST_F(TrainerProcess, DataThatIsNotThereIsNamed) {
  fs::remove(root_ / "corpus.txt");
  const pid_t child = Start(WriteSpec("missing", {}), root_ / "missing.err");
  EXPECT_EQ(Wait(child), 1);
  EXPECT_NE(Chatter("missing").find("corpus.txt"), std::string::npos) << Chatter("missing");
}

}  // namespace
}  // namespace nibble
