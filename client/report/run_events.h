// What a job's event log (docs/reference/events.md) records about its training, as curves and
// lists.
//
// Ownership: values. Thread-safety: none; values.
#ifndef NIBBLE_CLIENT_REPORT_RUN_EVENTS_H_
#define NIBBLE_CLIENT_REPORT_RUN_EVENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// The parts of a step's time, in the order of StepFigures::parts; the fields of the event.
inline constexpr std::array<std::pair<const char*, const char*>, 6> kStepParts = {{
    {"data_seconds", "data"},
    {"weights_seconds", "working weights"},
    {"forward_seconds", "forward"},
    {"backward_seconds", "backward"},
    {"reduce_seconds", "communication"},
    {"update_seconds", "optimizer"},
}};

struct StepFigures {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double tokens = 0;
  double loss = kUnknown;
  double gradient_norm = kUnknown;
  double learning_rate = kUnknown;
  double tokens_per_second = kUnknown;
  double seconds = kUnknown;
  std::array<double, kStepParts.size()> parts = {};  // seconds
  bool has_parts = false;
};

// One operand of one layer in a sample. The indices are of RunRecord.
struct OperandSample {
  int32_t layer = 0;
  int32_t operand = 0;
  int32_t format = 0;
  float relative_error = 0;
  float underflow = 0;
  float clipped = 0;
};

struct RunNote {
  int64_t step = 0;
  std::string time;
  std::string kind;  // "guard", "notice", "error", "checkpoint"
  std::string text;
};

struct GemmPath {
  int64_t step = 0;
  std::string gemm, path, reason;
  int64_t linears = 0;
};

struct RunRecord {
  std::map<int64_t, StepFigures> steps;
  std::map<int64_t, std::vector<OperandSample>> precision;
  // Names of the indices, in the order of the log, which is the model's.
  std::vector<std::string> layers, operands, formats;
  std::map<std::string, std::map<int64_t, double>> validation;  // set → step → loss
  std::vector<RunNote> notes;                                   // by step
  // Losses of abandoned branches of history, attempt by attempt: of steps that a later attempt
  // repeated with other results, as after a rollback, and of those that it did not reach.
  std::vector<std::map<int64_t, double>> abandoned;
  std::vector<int64_t> resumed_at;                         // steps, attempt by attempt
  std::vector<GemmPath> paths;                             // of the last revision
  std::vector<std::pair<std::string, std::string>> start;  // fields of the last start event
  std::vector<std::pair<std::string, int64_t>> memory;     // bytes, of the last plan
  int64_t lines = 0;
  int64_t unreadable = 0;  // lines that are not an event
};

// Reads event logs line by line. Logs of several workers, each of which ran rank 0 for some
// attempts, may be added one after the other in any order: attempts are put in the order in which
// they began, and one that resumes at a step replaces what earlier ones recorded from there on.
class RunEvents {
 public:
  // Without precision, its events are skipped unread.
  explicit RunEvents(bool with_precision) : with_precision_(with_precision) {}

  // The lines that follow are of another log.
  void BeginLog() { current_ = nullptr; }
  // One line without its line end. A line that is not an event is counted and skipped.
  void Add(std::string_view line);
  // Once, after the last line.
  RunRecord Finish();

 private:
  struct Attempt {
    std::string began;
    int64_t first_step = 0;
    RunRecord record;
  };

  int32_t IndexOf(const std::string& name, std::map<std::string, int32_t>& indices,
                  std::vector<std::string>& names);

  const bool with_precision_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  Attempt* current_ = nullptr;  // of attempts_
  RunRecord names_;             // layers, operands, formats, lines, unreadable
  std::map<std::string, int32_t> layers_, operands_, formats_;
};

// Whether the text of a guard's note is that of a decision that changed nothing.
bool OnlyObserved(std::string_view text);

// Adds the coordinator's samples of steps that the log does not have.
void AddSamples(const std::vector<v1::StepSample>& samples, RunRecord& record);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_RUN_EVENTS_H_
