#include "common/metrics/http_exposer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/listen_address.h"
#include "httplib.h"

namespace nibble {
namespace {

// Threads that take connections as they come. Whoever brings one waits until a thread is free.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }

  void enqueue(std::function<void()> serve) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return next_ == nullptr; });
    next_ = std::move(serve);
    changed_.notify_all();
  }

  // Serves the last one.
  void shutdown() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || next_ != nullptr; });
      if (next_ == nullptr) return;
      const std::function<void()> serve = std::exchange(next_, nullptr);
      changed_.notify_all();
      lock.unlock();
      serve();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::function<void()> next_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

class BoundedServer : public httplib::Server {
 public:
  BoundedServer(const DeadlineStream::Limits& limits, const std::atomic<bool>& stopping)
      : limits_(limits), stopping_(stopping) {}

 private:
  bool process_and_close_socket(socket_t socket) override {
    DeadlineStream stream(socket, limits_, stopping_);
    bool closed = false;
    const bool served = process_request(stream, true, closed, nullptr);
    // Unread bytes would make close() reset the connection under an answer still on its way.
    (void)shutdown(socket, SHUT_WR);
    char rest[1024];
    while (recv(socket, rest, sizeof rest, MSG_DONTWAIT) > 0) {
    }
    (void)close(socket);
    return served;
  }

  const DeadlineStream::Limits limits_;
  const std::atomic<bool>& stopping_;
};

httplib::Server::HandlerResponse Serve(const std::map<std::string, HttpExposer::Page>& pages,
                                       const httplib::Request& request,
                                       httplib::Response& response) {
  const auto page = pages.find(request.path);
  HttpAnswer answer;
  if (page == pages.end()) {
    answer = {.code = 404, .body = "no such page\n"};
  } else if (request.method != "GET" && request.method != "HEAD") {
    answer = {.code = 405, .body = "GET or HEAD\n"};
  } else {
    answer = page->second();
  }
  response.status = answer.code;
  response.set_content(answer.body, answer.type);
  return httplib::Server::HandlerResponse::Handled;
}

// The port that is bound; 0: it is taken.
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
  std::atomic<bool> stopping = false;
  std::unique_ptr<BoundedServer> server;
  std::string address;
  int port = 0;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<HttpExposer>> HttpExposer::Start(Options options) {
  absl::Status status = CheckListenAddress("http", options.listen, options.insecure);
  if (!status.ok()) return status;
  ListenAddress address = *ParseListenAddress("http", options.listen);
  auto parts = std::make_unique<Parts>(std::move(options));
  const Options& kept = parts->options;
  const auto make = [&kept, &stopping = parts->stopping] {
    auto server = std::make_unique<BoundedServer>(kept.limits, stopping);
    server->new_task_queue = [&kept] { return new ConnectionThreads(kept.threads); };
    // One program at a port: the library's default lets several share it.
    server->set_socket_options([](socket_t socket) {
      const int yes = 1;
      (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server->set_payload_max_length(kept.limits.request_bytes);
    server->set_pre_routing_handler([&kept](const auto& request, auto& response) {
      return Serve(kept.pages, request, response);
    });
    return server;
  };
  parts->server = make();
  int port = Bind(*parts->server, address);
  if (port == 0 && address.port != 0 && kept.or_free_port) {
    address.port = 0;
    parts->server = make();
    port = Bind(*parts->server, address);
  }
  if (port == 0) {
    return absl::UnavailableError(absl::StrCat("http: '", kept.listen, "' cannot be listened on"));
  }
  address.port = parts->port = port;
  parts->address = address.ToString();
  httplib::Server* const server = parts->server.get();
  parts->thread = std::thread([server] { server->listen_after_bind(); });
  return std::unique_ptr<HttpExposer>(new HttpExposer(std::move(parts)));
}

HttpExposer::HttpExposer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpExposer::~HttpExposer() {
  // A stop that comes before the server listens would be lost.
  while (!parts_->server->is_running()) std::this_thread::yield();
  parts_->stopping = true;
  parts_->server->stop();
  parts_->thread.join();
}

const std::string& HttpExposer::address() const { return parts_->address; }
int HttpExposer::port() const { return parts_->port; }

}  // namespace nibble
