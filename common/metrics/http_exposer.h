// What a program shows over plain HTTP: pages for probes and for Prometheus, by GET or HEAD of an
// exact path. Everything else is 404, 405 or 400.
//
// Connections are bounded as http_loop.h says, one request each: peers that send half a request or
// read nothing delay nobody.
//
// Ownership: owns its socket and threads; a page's function is called from them until the exposer
// is destroyed. Thread-safety: all methods.
#ifndef NIBBLE_COMMON_METRICS_HTTP_EXPOSER_H_
#define NIBBLE_COMMON_METRICS_HTTP_EXPOSER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/http_loop.h"

namespace nibble {

struct HttpAnswer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// "ok\n", or 503 and why not.
HttpAnswer HealthAnswer(const absl::Status& status);
// The text format of Prometheus.
HttpAnswer MetricsAnswer(std::string text);

class HttpExposer {
 public:
  using Page = std::function<HttpAnswer()>;

  struct Options {
    std::string listen;         // host:port; port 0: a free one
    bool insecure = false;      // off loopback, too
    bool or_free_port = false;  // where the port is taken
    HttpLoop::Limits limits;
    std::map<std::string, Page> pages;  // by path
  };

  // Errors as CheckListenAddress; Unavailable where the port cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpExposer>> Start(Options options);
  ~HttpExposer();
  HttpExposer(const HttpExposer&) = delete;
  HttpExposer& operator=(const HttpExposer&) = delete;

  // host:port as it is.
  const std::string& address() const;
  int port() const;

 private:
  struct Parts;
  explicit HttpExposer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_HTTP_EXPOSER_H_
