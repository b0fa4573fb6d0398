// The display of `nibble job watch`: pure functions of what the coordinator has reported.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_WATCH_VIEW_H_
#define NIBBLE_CLIENT_REMOTE_WATCH_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// What the coordinator has reported about a job. Its size is bounded, however long the job is
// watched.
class WatchState {
 public:
  static constexpr size_t kMostSamples = 1024;
  static constexpr size_t kMostEvents = 50;

  void SetJob(const v1::Job& job) { job_ = job; }
  // False if the event is known already.
  bool AddEvent(const v1::JobEvent& event);
  // A sample of a repeated step replaces the samples of that step and of all later ones.
  void AddSample(const v1::StepSample& sample);
  void SetRevisions(std::vector<v1::RecipeRevision> revisions) {
    revisions_ = std::move(revisions);
  }
  void SetWorkers(std::vector<v1::Worker> workers) { workers_ = std::move(workers); }

  const v1::Job& job() const { return job_; }
  const std::vector<v1::StepSample>& samples() const { return samples_; }
  const std::deque<v1::JobEvent>& events() const { return events_; }
  const std::vector<v1::RecipeRevision>& revisions() const { return revisions_; }
  const std::vector<v1::Worker>& workers() const { return workers_; }

  // The next step, according to the last job or sample.
  int64_t next_step() const;
  // The remaining time at the pace of the last samples; negative: unknown.
  double eta_seconds() const;

 private:
  v1::Job job_;
  std::vector<v1::StepSample> samples_;  // by step
  std::deque<v1::JobEvent> events_;      // oldest first
  std::vector<v1::RecipeRevision> revisions_;
  std::vector<v1::Worker> workers_;  // of the running attempt
};

struct ViewSize {
  int columns = 80;
  int rows = 24;
};
// Lines of at most size.columns - 1 columns, fewer than size.rows. `note`, about the connection, is
// the last line.
std::vector<std::string> RenderWatch(const WatchState& state, const ViewSize& size,
                                     int64_t now_unix_ms, const std::string& note);

// "step 120/1000 (12%)  loss 3.1416  12.3k tok/s  eta 14m02s  recipe r2": one line, for a pipe.
std::string SampleLine(const WatchState& state);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WATCH_VIEW_H_
