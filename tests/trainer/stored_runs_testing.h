// For tests: runs of nibble-trainer and the checkpoints that they stored.
//
// Ownership: as TrainerProcess. Thread-safety: none.
#ifndef NIBBLE_TESTS_TRAINER_STORED_RUNS_TESTING_H_
#define NIBBLE_TESTS_TRAINER_STORED_RUNS_TESTING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/trainer_process_testing.h"
#include "worker/checkpoint/checkpoint_store.h"

namespace nibble {

class StoredRuns : public TrainerProcess {
 protected:
  static constexpr char kCheckpoints[] = "checkpoints: {every: 3, keep_last: 3}\n";

  // The checkpoints of the run `name`.
  std::unique_ptr<CheckpointStore> Store(const std::string& name) const;
  // Their steps, oldest first.
  std::vector<int64_t> Stored(const std::string& name) const;
  // Every tensor of the checkpoint, by name.
  std::map<std::string, std::string> Tensors(const std::string& name, int64_t step) const;
  // False if there are none; a test failure with the name if one differs.
  static bool SameTensors(const std::map<std::string, std::string>& a,
                          const std::map<std::string, std::string>& b);
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_TRAINER_STORED_RUNS_TESTING_H_
