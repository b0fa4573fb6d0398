// For tests: jobs with steps of milliseconds, and their undisturbed runs for comparison.
//
// Ownership: values. Thread-safety: the functions depend only on the disk; one run per directory.
#ifndef NIBBLE_TESTS_CLUSTER_TINY_JOB_H_
#define NIBBLE_TESTS_CLUSTER_TINY_JOB_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nibble {

struct TinyJob {
  std::string name = "run";
  int ranks = 1;
  int64_t steps = 200;
  int64_t every = 10;     // steps between checkpoints
  int64_t keep_last = 3;  // checkpoints
  int sequence = 16;
  int batch = 4;
  int seed = 3;
  double decay_fraction = 0.3;  // 0: losses do not depend on `steps`
  int validate_every = 0;       // 0: never
  int precision_every = 0;      // 0: never
  std::string model = "tiny-transformer";
  std::string recipe = "nvfp4";
  int64_t memory_mib = 0;  // per rank; 0: no bound
  std::string more;        // further lines of YAML

  // `corpus` is the path of a text.
  std::string Yaml(const std::string& corpus) const;
};

// Runs nibble-trainer with the spec in the directory to its end; returns the event log. A test
// failure if it does not complete.
std::vector<nlohmann::json> RunUndisturbed(const std::string& trainer, const std::string& spec_yaml,
                                           const std::filesystem::path& directory);

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_TINY_JOB_H_
