// For tests: a client that submits and ends jobs without pause while the cluster is disturbed, and
// remembers what was acknowledged.
//
// Ownership: owns its channel and one thread. Thread-safety: none; the data that it shares with its
// thread have a lock.
#ifndef NIBBLE_TESTS_CLUSTER_CLERK_H_
#define NIBBLE_TESTS_CLUSTER_CLERK_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/job_watch.h"

namespace nibble {

class Clerk {
 public:
  // Acknowledged changes: the names of jobs, by id.
  struct Acknowledged {
    std::map<std::string, std::string> submitted, ended;

    int64_t changes() const { return static_cast<int64_t>(submitted.size() + ended.size()); }
  };

  explicit Clerk(ClusterBed& bed);
  ~Clerk() { Stop(); }
  Clerk(const Clerk&) = delete;
  Clerk& operator=(const Clerk&) = delete;

  // So far.
  Acknowledged Known() const;
  // Ends its thread; a test failure if a request failed.
  void Stop();
  // The coordinator has each of these jobs once, and the ended ones have ended.
  void ExpectKept(const Acknowledged& acknowledged);
  // Stops. Everything that was acknowledged is there: as above, and what the bed's watch has
  // reported about `job`. Returns the number of acknowledged changes.
  int64_t ExpectNothingLost(const std::string& job);

 private:
  void Run();
  // Repeats the request, with its id, until it is answered, or for kPatience.
  template <class Request, class Response>
  bool Call(const Rpc<Request, Response>& rpc, const Request& request, Response* response);

  ClusterBed& bed_;
  CoordinatorStub stub_;
  const std::string spec_;
  std::atomic<bool> end_{false};
  mutable Mutex mutex_;
  Acknowledged known_ ABSL_GUARDED_BY(mutex_);
  std::string failure_;  // used by the thread until it has ended
  std::thread thread_;   // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CLERK_H_
