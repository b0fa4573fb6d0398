// A plain HTTP server of pages for probes and for Prometheus: GET or HEAD of an exact path, and
// forms, which take a POST at one. Everything else is 404, 405 or 400, a body that is longer than
// `limits.body_bytes` is 413, and one that is compressed is 415. Pages are sent whole, also if a
// range of one is asked for.
//
// One request per connection, with the bounds of http_loop.h: peers that send half a request or
// read nothing delay no other request.
//
// Ownership: owns its socket and threads, which call the pages' functions until the exposer is
// destroyed. Thread-safety: all methods.
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

// 200 "ok\n", or 503 with the status's message.
HttpAnswer HealthAnswer(const absl::Status& status);
// The text format of Prometheus.
HttpAnswer MetricsAnswer(std::string text);

struct HttpPosted {
  // The headers of these names; empty: none.
  std::string authorization;
  std::string content_type;
  std::string body;
};

class HttpExposer {
 public:
  using Page = std::function<HttpAnswer()>;
  using Form = std::function<HttpAnswer(const HttpPosted&)>;

  struct Options {
    std::string listen;         // host:port; port 0: a free one
    bool insecure = false;      // allow other addresses than loopback
    bool or_free_port = false;  // use a free port if this one is taken
    HttpLoop::Limits limits;
    std::map<std::string, Page> pages;  // by path
    std::map<std::string, Form> forms;  // by path, which is not that of a page
  };

  // The errors of CheckListenAddress, and those of ErrnoError if the port cannot be listened on:
  // FailedPrecondition if it is taken.
  static absl::StatusOr<std::unique_ptr<HttpExposer>> Start(Options options);
  ~HttpExposer();
  HttpExposer(const HttpExposer&) = delete;
  HttpExposer& operator=(const HttpExposer&) = delete;

  // host:port, with the port that is listened on.
  const std::string& address() const;
  int port() const;

 private:
  struct Parts;
  explicit HttpExposer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_HTTP_EXPOSER_H_
