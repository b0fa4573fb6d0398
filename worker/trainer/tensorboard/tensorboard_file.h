// A TensorBoard event file: figures of a run as scalars, its spec as a text.
//
// The file is a sequence of records (TFRecord): 8 bytes of length, the masked CRC-32C of these,
// that many bytes of nibble.tensorboard.Event, their masked CRC-32C; all little-endian.
//
// Tags: train/FIELD of the step events, validation/SET at the last step before it, and
// precision_FIELD/LAYER/OPERAND. A run
// that resumes writes a session start, by which TensorBoard drops the repeated steps.
//
// Ownership: owns the file. Thread-safety: none for objects; pure functions.
#ifndef NIBBLE_WORKER_TRAINER_TENSORBOARD_TENSORBOARD_FILE_H_
#define NIBBLE_WORKER_TRAINER_TENSORBOARD_TENSORBOARD_FILE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/trainer/report/run_event.h"

namespace nibble::tensorboard {
class Event;
class Summary;
}  // namespace nibble::tensorboard

namespace nibble {

// The checksum of a record's parts: rotated, so that a CRC of data that contains CRCs stays strong.
uint32_t MaskedCrc32c(std::string_view bytes);
// One record with this content.
std::string TfRecord(std::string_view content);

class TensorboardFile {
 public:
  // What happens to a file that the directory has of the same second: an export replaces its
  // earlier one, a run that resumes keeps it, and names its own after the next free second.
  enum class Earlier : uint8_t { kReplace, kKeep };

  // Makes `directory` and in it the file of a run that began at `began`. Errors name the path and
  // the system's error.
  static absl::StatusOr<std::unique_ptr<TensorboardFile>> Create(
      const std::string& directory, absl::Time began, Earlier earlier = Earlier::kReplace);
  ~TensorboardFile();
  TensorboardFile(const TensorboardFile&) = delete;
  TensorboardFile& operator=(const TensorboardFile&) = delete;

  // Adds the figures of a step, validation or precision event, or what a start event says; other
  // events have none.
  absl::Status Add(const RunEvent& event);
  // Passes everything added so far to the system, for a TensorBoard that is open.
  absl::Status Flush();

  const std::string& path() const { return path_; }
  int64_t scalars() const { return scalars_; }

 private:
  TensorboardFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  absl::Status AddRecord(const tensorboard::Event& event);
  absl::Status AddStart(const RunEvent& event);
  void AddScalar(const std::string& tag, double value, const std::string& description,
                 tensorboard::Summary& summary);
  void AddFields(const RunEvent& event, const std::string& before, const std::string& after,
                 tensorboard::Summary& summary);

  const std::string path_;
  const int fd_;
  std::string waiting_;         // records that are not written yet
  std::set<std::string> tags_;  // that have a description
  int64_t scalars_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_TENSORBOARD_TENSORBOARD_FILE_H_
