// For tests: nibble-trainer as people run it, in a directory of the test's own: a spec in, an event
// log out.
//
// Ownership: owns the directory. Thread-safety: none.
#ifndef NIBBLE_TESTS_TRAINER_TRAINER_PROCESS_H_
#define NIBBLE_TESTS_TRAINER_TRAINER_PROCESS_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/trainer/link/trainer_exit.h"

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
    std::string more;  // further lines of YAML
  };

  void SetUp() override;
  void TearDown() override;

  std::filesystem::path WriteSpec(const std::string& name, const Settings& settings) const;
  // In a process group of its own. `disk_bytes`: its checkpoints are on a disk of this size, which
  // is gone with it; 0: where everything else is. Of that disk all but kLeftOnDisk is taken by a
  // file, until FreeDisk.
  pid_t Start(const std::string& name, const std::filesystem::path& spec,
              const std::vector<std::string>& flags = {}, int64_t disk_bytes = 0) const;
  static constexpr int kNoSuchDisk = 122;
  static constexpr int64_t kLeftOnDisk = int64_t{10} << 20;
  void FreeDisk(const std::string& name, pid_t child) const;
  // The exit code, or 128 and the signal. kNoSuchDisk where this machine lets nobody mount one.
  static int Wait(pid_t child);
  // What it said on standard error.
  std::string Chatter(const std::string& name) const;
  // The whole lines so far: a trainer that still runs may be in the middle of its last one.
  std::vector<nlohmann::json> Events(const std::string& name) const;
  // From spec to end.
  std::vector<nlohmann::json> Run(const std::string& name, const Settings& settings) const;

  static std::vector<nlohmann::json> Of(const std::vector<nlohmann::json>& events,
                                        const std::string& kind);
  // Of steps, then of validations, in the order of the log.
  static std::vector<double> Losses(const std::vector<nlohmann::json>& events);
  // Of each step, as it was logged last.
  static std::map<int64_t, double> LossByStep(const std::vector<nlohmann::json>& events);

  std::filesystem::path root_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_TRAINER_TRAINER_PROCESS_H_
