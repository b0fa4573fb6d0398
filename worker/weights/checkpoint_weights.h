// The weights in a checkpoint: the FP32 masters, with the model that the checkpoint's job spec says.
//
// Ownership: owns the open checkpoint. Thread-safety: as WeightSource.
#ifndef NIBBLE_WORKER_WEIGHTS_CHECKPOINT_WEIGHTS_H_
#define NIBBLE_WORKER_WEIGHTS_CHECKPOINT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/weights/weight_source.h"

namespace nibble {

// The store in a run's output directory, or the directory itself where it is a store. NotFound
// names both.
absl::StatusOr<std::string> FindStore(const std::string& path);

class CheckpointWeights : public WeightSource {
 public:
  // `path` as FindStore. Without a step, the newest checkpoint of which every byte is right. Errors
  // as CheckpointStore's; DataLoss where the checkpoint lacks a weight of its model.
  static absl::StatusOr<std::unique_ptr<CheckpointWeights>> Open(const std::string& path,
                                                                 std::optional<int64_t> step);

  std::string description() const override { return description_; }
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  std::vector<std::string> notices() const override { return notices_; }
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override;

  const JobSpec& spec() const { return spec_; }
  const CheckpointHeader& header() const { return reader_->manifest().header; }

 private:
  CheckpointWeights() = default;

  std::string description_;
  JobSpec spec_;
  Outline outline_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const CheckpointReader> reader_;
  std::vector<std::string> notices_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_CHECKPOINT_WEIGHTS_H_
