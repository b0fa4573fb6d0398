// Reports of a service to systemd, by the protocol of sd_notify(3): datagrams to the socket that
// NOTIFY_SOCKET names. Without that variable (no systemd, or a unit of another type than notify)
// nothing is sent.
//
// Ownership: owns its socket. Thread-safety: calls from one thread.
#ifndef NIBBLE_COMMON_SERVICE_SERVICE_MANAGER_H_
#define NIBBLE_COMMON_SERVICE_SERVICE_MANAGER_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/descriptor.h"

namespace nibble {

class ServiceManager {
 public:
  using Clock = std::chrono::steady_clock;

  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them from the environment, so
  // that processes started later do not report as this one. Call before any other thread starts.
  // InvalidArgument, with the variable and its value: systemd would not set it so.
  static absl::StatusOr<ServiceManager> FromEnvironment();

  // The service has started; `text` is what `systemctl status` shows.
  absl::Status Ready(absl::string_view text);
  // The service has begun to stop.
  absl::Status Stopping();
  // The main loop runs. Sent at most once per third of the unit's WatchdogSec, and only if it has
  // one.
  absl::Status Alive(Clock::time_point now);

  bool present() const { return socket_.get() >= 0; }
  // Zero: the unit has no watchdog, or it watches another process.
  std::chrono::microseconds watchdog() const { return watchdog_; }

 private:
  ServiceManager() = default;
  absl::Status Send(absl::string_view message);

  std::string address_;  // a path, or a name that begins with a zero byte
  OwnedDescriptor socket_;
  std::chrono::microseconds watchdog_{0};
  std::optional<Clock::time_point> last_alive_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_SERVICE_SERVICE_MANAGER_H_
