// One POST over HTTP/1.1 or HTTPS, within a time limit that holds for the whole of it: connecting,
// the TLS handshake, sending and the answer's status line. A receiver that answers a byte at a
// time, or never, costs this time and no more. Only the resolver may take longer, as resolv.conf
// says.
//
// The host is resolved here, once, and only addresses that `may_connect` allows are connected to:
// nothing resolves it again. Redirects are not followed, proxies are not used, and of the answer
// nothing behind its status line is read.
//
// Ownership: a Cancel outlives the posts that it was given to. Thread-safety: Cancel's methods and
// PostHttp from any thread; threads that post should block SIGPIPE.
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

// Ends posts that are under way, and those that begin later.
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
// DeadlineExceeded; Cancelled; Unavailable for everything else, in words for people.
absl::StatusOr<int> PostHttp(const HttpPost& post, const Cancel& cancel);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_HTTP_POST_H_
