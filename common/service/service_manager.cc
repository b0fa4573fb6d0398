#include "common/service/service_manager.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errno_error.h"

namespace nibble {
namespace {

std::string TakeVariable(const char* name) {
  const char* const value = getenv(name);
  std::string taken = value == nullptr ? "" : value;
  (void)unsetenv(name);
  return taken;
}

}  // namespace

absl::StatusOr<ServiceManager> ServiceManager::FromEnvironment() {
  ServiceManager made;
  const std::string address = TakeVariable("NOTIFY_SOCKET");
  const std::string interval = TakeVariable("WATCHDOG_USEC");
  const std::string process = TakeVariable("WATCHDOG_PID");
  if (address.empty()) return made;
  if ((address[0] != '/' && address[0] != '@') || address.size() < 2 ||
      address.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("NOTIFY_SOCKET: '", address, "' is neither a path of at most ",
                     sizeof(sockaddr_un::sun_path) - 1,
                     " bytes that begins with / nor a name that begins with @"));
  }
  if (!interval.empty()) {
    int64_t microseconds = 0;
    if (!absl::SimpleAtoi(interval, &microseconds) || microseconds <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("WATCHDOG_USEC: '", interval, "' is not a positive number"));
    }
    if (process.empty() || process == absl::StrCat(getpid())) {
      made.watchdog_ = std::chrono::microseconds(microseconds);
    }
  }
  made.address_ = address;
  if (address[0] == '@') made.address_[0] = '\0';
  made.socket_ = OwnedDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!made.present()) return ErrnoError(errno, "opening a socket for", address);
  return made;
}

absl::Status ServiceManager::Ready(absl::string_view text) {
  return Send(absl::StrCat("READY=1\nSTATUS=", text));
}

absl::Status ServiceManager::Stopping() { return Send("STOPPING=1"); }

absl::Status ServiceManager::Alive(Clock::time_point now) {
  if (watchdog_.count() == 0) return absl::OkStatus();
  if (last_alive_.has_value() && now - *last_alive_ < watchdog_ / 3) return absl::OkStatus();
  last_alive_ = now;
  return Send("WATCHDOG=1");
}

absl::Status ServiceManager::Send(absl::string_view message) {
  if (!present()) return absl::OkStatus();
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  // The length excludes the final zero byte, which would be a part of an abstract name.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  if (sendto(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL,
             reinterpret_cast<const sockaddr*>(&to), length) < 0) {
    return ErrnoError(errno, "reporting to systemd at", address_);
  }
  return absl::OkStatus();
}

}  // namespace nibble
