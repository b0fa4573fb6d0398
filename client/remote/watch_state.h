// What `nibble job watch` knows about a job. Its size is bounded, however long the job is watched.
//
// Thread-safety: values.
#ifndef NIBBLE_CLIENT_REMOTE_WATCH_STATE_H_
#define NIBBLE_CLIENT_REMOTE_WATCH_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/remote/loss_history.h"
#include "client/remote/recipe_strip.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// Something that happened at a step.
struct StepMark {
  int64_t step = 0;
  char sign = ' ';  // 'c': checkpoint, 'R': restart, 'g': a guard
  friend bool operator==(const StepMark&, const StepMark&) = default;
};

// This job's loss against the reference's, over the last steps that both have.
struct LossDifference {
  double relative = 0;           // (loss - reference) / reference
  int64_t step = 0;              // the last of these steps
  bool reference_ended = false;  // well before this job's last sample
};

class WatchState {
 public:
  static constexpr size_t kMostRecent = 64;
  static constexpr size_t kMostEvents = 50;
  static constexpr size_t kMostMarks = 1000;

  void SetJob(const v1::Job& job) { job_ = job; }
  // False if the event is known already.
  bool AddEvent(const v1::JobEvent& event);
  // A sample of a repeated step replaces the samples of that step and of all later ones.
  void AddSample(const v1::StepSample& sample);
  // `bits`: by number of the revision.
  void SetRevisions(std::vector<v1::RecipeRevision> revisions, std::map<int64_t, GemmBits> bits) {
    revisions_ = std::move(revisions);
    bits_ = std::move(bits);
  }
  void SetWorkers(std::vector<v1::Worker> workers) { workers_ = std::move(workers); }
  void SetRanks(std::vector<v1::RankPace> ranks) { ranks_ = std::move(ranks); }
  void SetPrecision(v1::PrecisionSummary precision) { precision_ = std::move(precision); }
  // The job whose losses are shown beside this one's; without losses yet.
  void SetReference(std::string job) { reference_ = std::move(job); }
  void AddReferenceSample(const v1::StepSample& sample) {
    reference_losses_.Add(sample.step(), sample.loss());
  }

  const v1::Job& job() const { return job_; }
  // The newest samples, by step.
  const std::deque<v1::StepSample>& recent() const { return recent_; }
  const LossHistory& losses() const { return losses_; }
  const std::deque<v1::JobEvent>& events() const { return events_; }
  const std::deque<StepMark>& marks() const { return marks_; }
  const std::vector<v1::RecipeRevision>& revisions() const { return revisions_; }
  const std::map<int64_t, GemmBits>& bits() const { return bits_; }
  const std::vector<v1::Worker>& workers() const { return workers_; }
  const std::vector<v1::RankPace>& ranks() const { return ranks_; }
  const std::optional<v1::PrecisionSummary>& precision() const { return precision_; }
  // Empty: none was given.
  const std::string& reference() const { return reference_; }
  const LossHistory& reference_losses() const { return reference_losses_; }

  // The next step, according to the last job or sample.
  int64_t next_step() const;
  // The remaining time at the pace of the last samples; negative: unknown.
  double eta_seconds() const;
  // The means of the last samples' durations and their parts; unset without samples.
  std::optional<v1::StepSample> mean_step() const;
  // Unset without common steps.
  std::optional<LossDifference> relative_difference() const;

 private:
  v1::Job job_;
  std::deque<v1::StepSample> recent_;
  LossHistory losses_;
  std::deque<v1::JobEvent> events_;  // oldest first
  std::deque<StepMark> marks_;       // in the order of the events
  std::vector<v1::RecipeRevision> revisions_;
  std::map<int64_t, GemmBits> bits_;
  std::vector<v1::Worker> workers_;  // of the running attempt
  std::vector<v1::RankPace> ranks_;  // of the running attempt, by rank
  std::optional<v1::PrecisionSummary> precision_;
  std::string reference_;
  LossHistory reference_losses_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WATCH_STATE_H_
