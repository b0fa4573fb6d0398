#include "common/metrics/http_exposer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "httplib.h"

namespace nibble {
namespace {

// A complete request, and the response to it.
class TextStream : public httplib::Stream {
 public:
  explicit TextStream(const std::string& request) : request_(request) {}

  bool is_readable() const override { return at_ < request_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* out, size_t size) override {
    const size_t got = request_.copy(out, size, at_);
    at_ += got;
    return static_cast<ssize_t>(got);
  }
  ssize_t write(const char* bytes, size_t size) override {
    response_.append(bytes, size);
    return static_cast<ssize_t>(size);
  }
  // No handler uses the addresses.
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return INVALID_SOCKET; }

  std::string TakeResponse() { return std::move(response_); }

 private:
  const std::string& request_;
  size_t at_ = 0;
  std::string response_;
};

// The library binds, parses requests and formats responses; HttpLoop handles the connections.
class Responder : public httplib::Server {
 public:
  std::string Respond(const std::string& request) {
    TextStream stream(request);
    bool closed = false;
    // Pages are sent whole: a few bytes of request can name thousands of ranges, and the library
    // would repeat the page for each.
    (void)process_request(stream, true, closed,
                          [](httplib::Request& parsed) { parsed.ranges.clear(); });
    return stream.TakeResponse();
  }
  // Releases the bound socket to the caller.
  int TakeSocket() { return svr_sock_.exchange(INVALID_SOCKET); }
};

void Set(const HttpAnswer& answer, httplib::Response& response) {
  response.status = answer.code;
  response.set_content(answer.body, answer.type);
}

// Unset: the body of a form is read next.
std::optional<HttpAnswer> AnswerToHead(const HttpExposer::Options& options,
                                       const httplib::Request& request) {
  if (options.forms.contains(request.path)) {
    if (request.method != "POST") return HttpAnswer{.code = 405, .body = "allowed: POST\n"};
    // The library would decompress it, to a thousand times its size and more.
    const std::string encoding = request.get_header_value("Content-Encoding");
    if (!encoding.empty() && encoding != "identity") {
      return HttpAnswer{.code = 415, .body = "Content-Encoding: allowed: identity\n"};
    }
    const auto bytes = request.get_header_value<uint64_t>("Content-Length");
    if (bytes <= options.limits.body_bytes) return std::nullopt;
    return HttpAnswer{.code = 413,
                      .body = absl::StrCat("body: ", bytes, " bytes; allowed: 0 to ",
                                           options.limits.body_bytes, "\n")};
  }
  const auto page = options.pages.find(request.path);
  if (page == options.pages.end()) return HttpAnswer{.code = 404, .body = "no such page\n"};
  if (request.method == "GET" || request.method == "HEAD") return page->second();
  return HttpAnswer{.code = 405, .body = "allowed: GET and HEAD\n"};
}

constexpr int kAnswerThreads = 8;

// The port that is bound; 0, with errno set: it cannot be.
int Bind(httplib::Server& server, const ListenAddress& address) {
  if (address.port == 0) return std::max(0, server.bind_to_any_port(address.host));
  return server.bind_to_port(address.host, address.port) ? address.port : 0;
}

}  // namespace

HttpAnswer HealthAnswer(const absl::Status& status) {
  if (status.ok()) return {.body = "ok\n"};
  return {.code = 503, .body = absl::StrCat(std::string(status.message()), "\n")};
}

HttpAnswer MetricsAnswer(std::string text) {
  return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(text)};
}

struct HttpExposer::Parts {
  explicit Parts(Options made) : options(std::move(made)) {}

  const Options options;
  Responder responder;
  std::string address;
  int port = 0;
  std::unique_ptr<HttpLoop> loop;  // last: its threads use the above
};

absl::StatusOr<std::unique_ptr<HttpExposer>> HttpExposer::Start(Options options) {
  NIBBLE_RETURN_IF_ERROR(CheckListenAddress("http", options.listen, options.insecure));
  NIBBLE_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress("http", options.listen));
  auto parts = std::make_unique<Parts>(std::move(options));
  const Options& kept = parts->options;
  Responder& responder = parts->responder;
  // One program per port: with the library's default several could share it.
  responder.set_socket_options([](socket_t socket) {
    const int yes = 1;
    (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  responder.set_pre_routing_handler([&kept](const auto& request, auto& response) {
    const std::optional<HttpAnswer> answer = AnswerToHead(kept, request);
    if (!answer) return httplib::Server::HandlerResponse::Unhandled;
    Set(*answer, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  for (const auto& [path, form] : kept.forms) {
    responder.Post(path, [&form = form](const auto& request, auto& response) {
      Set(form({.authorization = request.get_header_value("Authorization"),
                .content_type = request.get_header_value("Content-Type"),
                .body = request.body}),
          response);
    });
  }
  int port = Bind(responder, address);
  if (port == 0 && address.port != 0 && kept.or_free_port) {
    address.port = 0;
    port = Bind(responder, address);
  }
  if (port == 0) {
    return ErrnoError(errno, "http: listening on", kept.listen);
  }
  address.port = parts->port = port;
  parts->address = address.ToString();
  const int listener = responder.TakeSocket();
  // The library's backlog of 5 overflows when more peers connect at once.
  (void)listen(listener, SOMAXCONN);
  NIBBLE_ASSIGN_OR_RETURN(auto loop, HttpLoop::Start(listener, kept.limits, kAnswerThreads,
                                                     [&responder](const std::string& request) {
                                                       return responder.Respond(request);
                                                     }));
  parts->loop = std::move(loop);
  return std::unique_ptr<HttpExposer>(new HttpExposer(std::move(parts)));
}

HttpExposer::HttpExposer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpExposer::~HttpExposer() = default;

const std::string& HttpExposer::address() const { return parts_->address; }
int HttpExposer::port() const { return parts_->port; }

}  // namespace nibble
