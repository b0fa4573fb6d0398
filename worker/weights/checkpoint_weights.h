// Checkpoints as weights: how a command line names one, its FP32 master weights with the model of
// its job spec, and the checkpoint of step 0 for training that begins from existing weights.
//
// The tensors and files of a run's stored state:
//
//   master/<parameter>       FP32, the parameter's shape
//   adam_m/<parameter>       FP32, first moment
//   adam_v/<parameter>       FP32, second moment
//   trainer/counters         I64 [3]: updates, losses in the spike guard's window, spikes in a row
//   trainer/spike_losses     F64 [window]: oldest first, zero-padded
//   trainer/norm_guard       I64 [2]: gradient norms in their guard's window, spikes in a row;
//   older
//                            checkpoints have neither this tensor nor the next
//   trainer/gradient_norms   F64 [window]: oldest first, zero-padded
//   trainer/early_stop       F64 [2], if the spec may stop early: the best validation loss, and the
//                            validations since
//
// Ownership: a CheckpointWeights owns the open checkpoint. Thread-safety: values and pure
// functions; CheckpointWeights as WeightSource; WriteInitialCheckpoint: one call at a time per
// store.
#ifndef NIBBLE_WORKER_WEIGHTS_CHECKPOINT_WEIGHTS_H_
#define NIBBLE_WORKER_WEIGHTS_CHECKPOINT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_spec.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/weights/weight_source.h"

namespace nibble {

class CheckpointStore;

struct CheckpointName {
  std::string directory;
  std::optional<int64_t> step;  // none: the newest
};

// Parses "DIRECTORY" or "DIRECTORY@STEP", as on a command line. The text after the last '@' is the
// step if it is all digits; otherwise the '@' belongs to the directory. InvalidArgument for no
// directory or a step beyond 64 bits.
absl::StatusOr<CheckpointName> ParseCheckpointName(std::string_view text);

// The store in a run's output directory, or the directory itself if it is a store. NotFound names
// both.
absl::StatusOr<std::string> FindStore(const std::string& path);

class CheckpointWeights : public WeightSource {
 public:
  // `path` as FindStore. Without a step, opens the newest checkpoint that passes its checksums.
  // Errors as CheckpointStore's; DataLoss if the checkpoint lacks a weight of its model.
  static absl::StatusOr<std::unique_ptr<CheckpointWeights>> Open(const std::string& path,
                                                                 std::optional<int64_t> step);

  std::string description() const override { return description_; }
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  std::optional<int64_t> trained_sequence() const override { return spec_.data.sequence; }
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

// Writes the checkpoint of step 0: the source's weights, moments of zero. FailedPrecondition if the
// job's model is not the source's, naming the first field that differs, or if the store already has
// checkpoints.
absl::Status WriteInitialCheckpoint(CheckpointStore& store, const JobSpec& spec,
                                    WeightSource& source, int64_t time_unix_nanos);

inline constexpr char kMasterPrefix[] = "master/";
inline constexpr char kFirstMomentPrefix[] = "adam_m/";
inline constexpr char kSecondMomentPrefix[] = "adam_v/";
inline constexpr char kCounters[] = "trainer/counters";
inline constexpr int64_t kCounterCount = 3;
inline constexpr char kSpikeLosses[] = "trainer/spike_losses";
inline constexpr char kNormGuard[] = "trainer/norm_guard";
inline constexpr int64_t kNormGuardCount = 2;
inline constexpr char kGradientNorms[] = "trainer/gradient_norms";
inline constexpr char kEarlyStop[] = "trainer/early_stop";
inline constexpr int64_t kEarlyStopCount = 2;

// Increases when the same spec no longer gives the same bits.
inline constexpr int32_t kFormulaVersion = 1;

// The store's name in a run's output directory.
inline constexpr char kCheckpointDirectoryName[] = "checkpoints";

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_CHECKPOINT_WEIGHTS_H_
