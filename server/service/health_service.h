// grpc.health.v1: whether the server and each of its services accept calls. Anybody may ask, with
// the rate and the refusals of an address (Admission::AdmitAnybody), which gRPC's own service of
// this name does not bound.
//
// Ownership: borrows the admission; its callers share `Health`. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_HEALTH_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_HEALTH_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

class Admission;

// The status that is served: one for all services.
class Health {
 public:
  static constexpr size_t kWatches = 1000;  // open at once

  // Full names; the empty one is the server's.
  explicit Health(std::set<std::string> services) : services_(std::move(services)) {}

  bool Knows(const std::string& service) const { return services_.contains(service); }
  bool serving() const;
  // Calls every watch, without a lock.
  void Set(bool serving);
  // `changed` is called after each Set. 0: too many are open.
  int64_t Watch(std::function<void()> changed);
  void EndWatch(int64_t number);

 private:
  const std::set<std::string> services_;
  mutable Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::function<void()>> watches_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<grpc::Service> MakeHealthService(Admission& admission,
                                                 std::shared_ptr<Health> health);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_HEALTH_SERVICE_H_
