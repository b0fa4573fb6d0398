// A coordinator that is not part of a bed's cluster, as on another machine.
//
// Ownership: owns the process, which ends with this. Thread-safety: one thread.
#ifndef NIBBLE_TESTS_CLUSTER_OTHER_COORDINATOR_H_
#define NIBBLE_TESTS_CLUSTER_OTHER_COORDINATOR_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/cluster/cluster_bed.h"

namespace nibble {

class OtherCoordinator {
 public:
  struct Options {
    std::string address;  // empty: the bed's
    bool standby = false;
    std::vector<std::string> flags = {};
  };

  // Begins with this store. Of a standby it waits until that waits.
  OtherCoordinator(const ClusterBed& bed, const std::string& store, const Options& options);
  OtherCoordinator(const ClusterBed& bed, const std::string& store)
      : OtherCoordinator(bed, store, Options()) {}
  ~OtherCoordinator();
  OtherCoordinator(const OtherCoordinator&) = delete;
  OtherCoordinator& operator=(const OtherCoordinator&) = delete;

  // SIGTERM; returns its status once it has ended.
  int Stop();
  std::string Log() const;

 private:
  const std::string log_;
  pid_t pid_ = -1;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_OTHER_COORDINATOR_H_
