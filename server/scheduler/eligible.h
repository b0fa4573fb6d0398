// Which kinds of workers a job can use, best first.
//
// Ownership: values. Thread-safety: immutable once made.
#ifndef NIBBLE_SERVER_SCHEDULER_ELIGIBLE_H_
#define NIBBLE_SERVER_SCHEDULER_ELIGIBLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/scheduler/cluster.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

// A kind that has every required label.
struct EligibleKind {
  int kind = 0;
  int preferred = 0;  // how many preferred labels it has
  int unasked = 0;    // how many labels it has that were neither required nor preferred
};

// Most preferred labels first, then fewest unasked ones, so that special hardware is left to those
// who ask for it, then by kind.
using EligibleKinds = std::vector<EligibleKind>;

EligibleKinds FindEligibleKinds(const Cluster& cluster, const Job& job);

// Jobs that require and prefer the same labels share one answer.
class EligibleTable {
 public:
  explicit EligibleTable(const Cluster& cluster) : cluster_(cluster) {}

  // A stable number for the job's labels.
  int IdOf(const Job& job);
  // Valid until the next IdOf().
  const EligibleKinds& operator[](int id) const { return kinds_[id]; }
  int size() const { return static_cast<int>(kinds_.size()); }

 private:
  const Cluster& cluster_;
  std::string key_;
  absl::flat_hash_map<std::string, int> ids_;
  std::vector<EligibleKinds> kinds_;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_ELIGIBLE_H_
