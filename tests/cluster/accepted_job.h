// For tests: what the coordinator acknowledged about a job, and the check that all of it is true
// when the job has ended.
//
// Ownership: an AcceptedJobCheck borrows the cluster. Thread-safety: none.
#ifndef NIBBLE_TESTS_CLUSTER_ACCEPTED_JOB_H_
#define NIBBLE_TESTS_CLUSTER_ACCEPTED_JOB_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/tiny_job.h"

namespace nibble {

// What the coordinator acknowledged about one job.
struct AcceptedJob {
  std::string job;
  TinyJob spec;
  std::map<std::string, int> hits_before;  // by worker: its faults before the job was submitted
  bool changes_now = false;                // the recipe changes at unpredictable steps
  bool restored = false;                   // a restored store may lack acknowledged changes
  int64_t checkpoints = 0;                 // requested
  std::map<int64_t, int64_t> revisions;    // requested first step by number
};

class AcceptedJobCheck {
 public:
  explicit AcceptedJobCheck(ClusterBed& bed) : bed_(bed) {}

  // Waits until the job has succeeded. A test failure unless it then has, bit for bit, the losses
  // of an undisturbed run with the same changes, its last checkpoint, and every change and
  // checkpoint that was acknowledged.
  void Run(const AcceptedJob& accepted);

  // The number of changes that ranks had run before they were superseded, in all jobs so far.
  int ran_superseded() const { return ran_superseded_; }

 private:
  void CheckLosses(const AcceptedJob& accepted);
  void CheckRevisions(const AcceptedJob& accepted);
  void CheckCheckpoints(const AcceptedJob& accepted);
  // The last checkpoint is present and complete.
  void CheckLast(const AcceptedJob& accepted);

  ClusterBed& bed_;
  int ran_superseded_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_ACCEPTED_JOB_H_
