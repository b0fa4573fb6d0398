// For tests: runs nibble-trainer as a user would, in the test's own directory, and reads its event
// log.
//
// Ownership: owns the directory. Thread-safety: none.
#ifndef NIBBLE_TESTS_TRAINER_TRAINER_PROCESS_TESTING_H_
#define NIBBLE_TESTS_TRAINER_TRAINER_PROCESS_TESTING_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/processes/processes.h"
#include "worker/link/trainer_exit.h"

namespace nibble {

class TrainerProcess : public testing::Test {
 protected:
  static constexpr int kSteps = 12;

  struct Settings {
    int ranks = 1;
    int threads = 1;
    int steps = kSteps;
    std::string recipe = "nvfp4";
    std::string precision = "bf16";
    std::string device = TestDevice();
    std::string more;  // additional lines of YAML
    std::string sharding = "optimizer";
    std::string recompute = "none";
    std::string tensorboard;  // output.tensorboard
  };

  void SetUp() override;
  void TearDown() override;

  std::filesystem::path WriteSpec(const std::string& name, const Settings& settings) const;
  // Starts it in its own process group. `disk_bytes`: mount a temporary disk of this size for its
  // checkpoints, which a file fills except for kLeftOnDisk until FreeDisk(); 0: no such disk.
  // MayMount(): whether this machine permits that.
  pid_t Start(const std::string& name, const std::filesystem::path& spec,
              const std::vector<std::string>& flags = {}, int64_t disk_bytes = 0) const;
  bool MayMount() const;
  static constexpr int64_t kLeftOnDisk = int64_t{10} << 20;
  void FreeDisk(const std::string& name, pid_t child) const;
  // The exit code, or 128 plus the signal.
  static int Wait(pid_t child);
  // Its standard error.
  std::string Chatter(const std::string& name) const;
  // The complete lines so far: a running trainer may be writing the last one.
  std::vector<nlohmann::json> Events(const std::string& name) const;
  // Writes the spec, runs the trainer to its end and returns the events.
  std::vector<nlohmann::json> Run(const std::string& name, const Settings& settings) const;

  // Between two looks at a run, which needs the processor.
  static void PauseOfPoll() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

  // The losses of steps, then of validations, in the order of the log.
  static std::vector<double> Losses(const std::vector<nlohmann::json>& events);
  // The last logged loss of each step.
  static std::map<int64_t, double> LossByStep(const std::vector<nlohmann::json>& events);

  std::filesystem::path root_;
  std::string program_ = "worker/trainer/loop/nibble-trainer";
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_TRAINER_TRAINER_PROCESS_TESTING_H_
