// What a run says of itself: its event log, and progress for whoever looks on. Of a group, rank 0
// speaks; the reporter of another says nothing.
//
// A log that cannot be written is no reason to lose the run: it is said once, events wait in
// memory, and training goes on.
//
// Ownership: owns log and progress, borrows the stream. Thread-safety: one thread.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RUN_REPORTER_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RUN_REPORTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "job/job_spec.h"
#include "worker/trainer/loop/trainer.h"
#include "worker/trainer/report/event_log.h"
#include "worker/trainer/report/progress.h"

namespace nibble {

class RunReporter {
 public:
  struct Options {
    std::string directory;  // of the event log
    bool speaks = false;
    std::ostream* progress = nullptr;  // null: none
    bool terminal = false;             // it is one
    std::function<double()> clock;     // seconds, monotonic
  };
  static absl::StatusOr<std::unique_ptr<RunReporter>> Open(const JobSpec& spec,
                                                           const Options& options);

  // The steps begin now.
  void Begin() { logged_at_ = clock_(); }
  // So much time was not the steps'.
  void Waited(double seconds) { logged_at_ += seconds; }
  void StepDone(const StepReport& report, const Trainer& trainer);

  template <class Event>
  void Write(const Event& event) {
    if (log_ == nullptr) return;
    LookAtLog(log_->Write(event));
  }
  // Writes what waits; what it does not get rid of is said.
  void Close();
  // What the log waits for, in words that stay the same while it does; empty: nothing.
  std::string trouble() const;
  void Note(const std::string& text) {
    if (progress_ != nullptr) progress_->Note(text);
  }
  Progress* progress() { return progress_.get(); }
  bool speaks() const { return log_ != nullptr; }
  // Of the recipe, in force in the last step.
  int64_t revision() const { return revision_; }

 private:
  RunReporter(const JobSpec& spec, std::function<double()> clock)
      : spec_(spec), clock_(std::move(clock)) {}
  void LookAtLog(const absl::Status& status);
  void RevisionBegins(const Trainer& trainer, const Revision& revision);

  const JobSpec& spec_;
  const std::function<double()> clock_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Progress> progress_;
  bool log_failed_ = false;
  int64_t revision_ = 0;
  // Since the last step event.
  double logged_at_ = 0;
  int64_t tokens_since_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RUN_REPORTER_H_
