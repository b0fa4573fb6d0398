// For tests: a client that submits and ends jobs without pause while the cluster is disturbed, and
// remembers what was acknowledged.
//
// Ownership: owns its channel and one thread. Thread-safety: none.
#ifndef NIBBLE_TESTS_CLUSTER_CLERK_H_
#define NIBBLE_TESTS_CLUSTER_CLERK_H_

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/job_watch.h"

namespace nibble {

class Clerk {
 public:
  explicit Clerk(ClusterBed& bed);
  ~Clerk() { Stop(); }
  Clerk(const Clerk&) = delete;
  Clerk& operator=(const Clerk&) = delete;

  // Ends it. Everything that was acknowledged is there, once: its jobs, that they ended, and what
  // the bed's watch has reported about `job`. Returns the number of acknowledged changes.
  int64_t ExpectNothingLost(const std::string& job);

 private:
  void Run();
  void Stop();
  // Repeats the request, with its id, until it is answered, or for kPatience.
  template <class Request, class Response>
  bool Call(const Rpc<Request, Response>& rpc, const Request& request, Response* response);

  ClusterBed& bed_;
  CoordinatorStub stub_;
  const std::string spec_;
  std::atomic<bool> end_{false};
  // Used by the thread until it has ended.
  std::string failure_;
  std::map<std::string, std::string> submitted_;  // job → name
  std::map<std::string, std::string> ended_;
  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CLERK_H_
