// The reports of a run about itself: events and progress. rank_status.h has the reports to the
// daemon.
//
// Ownership: a RunReporter owns event log and progress and borrows the stream. Thread-safety: one
// thread per object; the free functions are pure.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_REPORTER_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_REPORTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "job/job_spec.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/report/event_log.h"
#include "worker/trainer/report/events.h"
#include "worker/trainer/report/progress.h"
#include "worker/trainer/tensorboard/tensorboard_file.h"

namespace nibble {

StartEvent StartOf(const JobSpec& spec, const Outline& outline, int64_t first_step, int threads,
                   const std::string& collectives);
// For a run that begins with step `step`.
MemoryEvent MemoryOf(const Trainer& trainer, const MemoryUse& use, int64_t step);
// One for every operand sampled.
std::vector<link::v1::PrecisionSample> PrecisionOf(const StepReport& report, const Outline& outline,
                                                   const Timeline& timeline);
// How the GEMMs of the trainer's linear layers are computed under the recipe that it prepared,
// from `step` on.
std::vector<link::v1::ProductPath> ProductsOf(const Trainer& trainer, int64_t step);
// One for each decision of a guard.
std::vector<GuardEvent> GuardsOf(const StepReport& report);
RevisionEvent RevisionOf(const Timeline& timeline, const Revision& revision,
                         const Outline& outline);

// Seconds of the monotonic clock, by which a run is timed.
double SteadySeconds();

// The event log of a run, and its progress output. Only rank 0's reporter writes; those of other
// ranks do nothing.
//
// If the log cannot be written the run continues: the error is reported once, and events are kept
// in memory. With output.tensorboard its figures are also in a TensorBoard file, which ends, with a
// notice, if it cannot be written.
class RunReporter {
 public:
  struct Options {
    std::string directory;             // of the event log
    bool writes = false;               // write the log: rank 0
    std::ostream* progress = nullptr;  // null: none
    bool terminal = false;             // `progress` is a terminal
    std::function<double()> clock;     // seconds, monotonic
  };
  static absl::StatusOr<std::unique_ptr<RunReporter>> Open(const JobSpec& spec,
                                                           const Options& options);

  // Called when the steps begin.
  void Begin() { logged_at_ = clock_(); }
  // Excludes a time from the step events' rates.
  void Waited(double seconds) { logged_at_ += seconds; }
  // `precision`: the samples of the step.
  void StepDone(const StepReport& report, const Trainer& trainer,
                const std::vector<link::v1::PrecisionSample>& precision);

  template <class Event>
  void Write(const Event& event) {
    if (log_ == nullptr) return;
    NoteLogState(log_->Write(event));
    if (board_ != nullptr) AddToBoard(EventText(event, absl::Now()));
  }
  // Writes the events kept in memory; reports those that it cannot write.
  void Close();
  // Why events are kept in memory, in words that stay the same as long as they are; else empty.
  const std::string& trouble() const { return trouble_; }
  // An event for operators, and the same text in the progress output.
  void Notice(int64_t step, const std::string& text) {
    Write(NoticeEvent{.step = step, .text = text});
    Note(text);
  }
  void Note(const std::string& text) {
    if (progress_ != nullptr) progress_->Note(text);
  }
  Progress* progress() { return progress_.get(); }
  bool writes() const { return log_ != nullptr; }
  // The recipe revision in effect in the last step.
  int64_t revision() const { return revision_; }

 private:
  RunReporter(const JobSpec& spec, std::function<double()> clock)
      : spec_(spec), clock_(std::move(clock)) {}
  void NoteLogState(const absl::Status& status);
  // `line`: of the event log.
  void AddToBoard(const std::string& line);
  void LoseBoard(const absl::Status& status);
  void RevisionBegins(const Trainer& trainer, const Revision& revision, int64_t step);
  void PromotionsChange(const Trainer& trainer, int64_t step);

  const JobSpec& spec_;
  const std::function<double()> clock_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<TensorboardFile> board_;  // null: none
  double flushed_at_ = 0;                   // board_
  int64_t step_ = 0;                        // the last one
  std::unique_ptr<Progress> progress_;
  std::string trouble_;
  int64_t revision_ = 0;
  std::vector<std::string> promoted_;  // layers, in the last step
  // At and since the last step event.
  double logged_at_ = 0;
  int64_t tokens_since_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_REPORTER_H_
