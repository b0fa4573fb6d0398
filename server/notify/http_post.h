// One POST over HTTP/1.1 or HTTPS, with one time limit for everything: connecting, the TLS
// handshake, sending, and the answer's status line. A receiver that answers slowly or never costs
// this time and no more. Only the resolver may take longer, as configured in resolv.conf.
//
// The host is resolved once, here, and only addresses that `may_connect` allows are connected to.
// Redirects are not followed, proxies are not used, and the answer is read only up to its status
// line.
//
// Ownership: a Cancel outlives the posts that use it. Thread-safety: Cancel's methods and PostHttp
// from any thread; threads that post should block SIGPIPE.
#ifndef NIBBLE_SERVER_NOTIFY_HTTP_POST_H_
#define NIBBLE_SERVER_NOTIFY_HTTP_POST_H_

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/notify_url.h"
#include "server/notify/allow_list.h"

namespace nibble {

// Ends current and later posts.
class Cancel {
 public:
  Cancel();
  ~Cancel();
  Cancel(const Cancel&) = delete;
  Cancel& operator=(const Cancel&) = delete;

  void Set();
  int fd() const { return fd_; }  // readable once it is set

 private:
  const int fd_;
};

struct HttpPost {
  NotifyUrl url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::chrono::milliseconds limit{10'000};
  std::function<bool(const IpAddress&)> may_connect;
};

// The status code of the answer, 200 to 599. PermissionDenied: no address of the host is allowed;
// DeadlineExceeded: no answer within the limit; Cancelled; Unavailable: everything else, because a
// later post may succeed. Messages are for people.
absl::StatusOr<int> PostHttp(const HttpPost& post, const Cancel& cancel);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_HTTP_POST_H_
