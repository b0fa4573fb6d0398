// The state of a rank that its daemon receives: kept for the rank's lifetime, because totals
// accumulate; other fields describe the newest step.
//
// Ownership: borrows the link. Thread-safety: one thread, the link's.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_RANK_STATUS_H_
#define NIBBLE_WORKER_TRAINER_LOOP_RANK_STATUS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/memory.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "recipe/timeline.h"
#include "worker/link/checkpoint_client.h"
#include "worker/link/rank_link.h"
#include "worker/trainer/loop/trainer.h"

namespace nibble {

class RankStatus {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic

  // Without a link nothing is sent. `memory`: of the rank's tensors, or null.
  RankStatus(RankLink* link, Clock clock, const Memory* memory = nullptr)
      : link_(link), clock_(std::move(clock)), memory_(memory) {}

  // After a step. `precision`: its samples, which rank 0 reports for all; their number and the
  // length of their names are bounded.
  void AddStep(const StepReport& step, const std::vector<link::v1::PrecisionSample>& precision);
  // Before a step under this revision. False if the step before had the same one.
  bool AddRevision(int64_t revision, int64_t first_step);
  // Under a recipe that ranks have prepared.
  void SetProducts(const std::vector<link::v1::ProductPath>& products);
  // After ranks could not prepare this revision.
  void AddRefusal(int64_t revision, const std::string& reason);
  // The revisions of a run that resumes at `next_step`: the coordinator may not know them if its
  // store was restored from an older copy.
  void AddHistory(const Timeline& timeline, int64_t next_step);
  // After a checkpoint that answers this request was stored or failed.
  void AddCheckpoint(const CheckpointClient::Outcome& outcome, int64_t request);

  // After the trace that this command requests was written or failed.
  void AddTrace(int64_t number, const absl::Status& status);

  // Sends the report with these fields. `trouble`: what blocks the rank; empty: nothing.
  void Send(link::v1::RankActivity activity, int64_t next_step, const std::string& trouble);
  // Sends it as it is.
  void Send();

  const link::v1::RankReport& report() const { return report_; }

 private:
  RankLink* const link_;  // may be null
  const Clock clock_;
  const Memory* const memory_;
  link::v1::RankReport report_;
  double memory_read_at_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_RANK_STATUS_H_
