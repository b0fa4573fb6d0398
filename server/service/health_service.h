// grpc.health.v1: whether the server and each of its services accept calls. Anybody may ask, at the
// rate of an address and with its refusals (Admission::AdmitAnybody). gRPC's own service of this
// name has no bounds.
//
// Ownership: the service borrows the admission and shares `Health`. Thread-safety: all methods.
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
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

class Admission;

// The health status, one for all services, and who watches it.
class Health {
 public:
  // Watches that are open at once.
  struct Limits {
    size_t all = 1000;
    size_t of_address = 100;
  };
  struct Status {
    bool serving = false;
    bool stopping = false;  // it will not serve again; watches end
  };

  // `services`: full names; the empty one is the server's.
  Health(std::set<std::string> services, const Limits& limits)
      : services_(std::move(services)), limits_(limits) {}

  bool Knows(const std::string& service) const { return services_.contains(service); }
  Status Now() const;
  // Tells every watch, without a lock.
  void SetServing(bool serving);
  // The server stops: no longer serving, for good.
  void Stop();

  // The number of a new watch, which has a place until Close. ResourceExhausted, naming the bound.
  absl::StatusOr<int64_t> Open(const std::string& address);
  // `changed` is called after each change from now on, and may still run when Close returns.
  void Follow(int64_t watch, std::function<void()> changed);
  void Close(int64_t watch);

 private:
  struct Watch {
    std::string address;
    std::function<void()> changed;  // null until Follow
  };

  void Set(bool serving, bool stopping);

  const std::set<std::string> services_;
  const Limits limits_;
  mutable Mutex mutex_;
  Status now_ ABSL_GUARDED_BY(mutex_);
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Watch> watches_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, size_t> by_address_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<grpc::Service> MakeHealthService(Admission& admission,
                                                 std::shared_ptr<Health> health);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_HEALTH_SERVICE_H_
