#include "common/metrics/http_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/descriptor.h"
#include "common/errno_error.h"
#include "common/mutex.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kEndOfHead[] = "\r\n\r\n";

// The bytes that the head announces for the body; 0: none, or not a number.
size_t BodyBytes(absl::string_view head) {
  for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    uint64_t bytes = 0;
    if (absl::EqualsIgnoreCase(field.first, "Content-Length")) {
      return absl::SimpleAtoi(field.second, &bytes) ? bytes : 0;
    }
  }
  return 0;
}

// How long new connections stay in the kernel's queue when no descriptor is free.
constexpr std::chrono::milliseconds kNoDescriptorPause(100);

// Threads that answer complete requests, with the queues of requests and responses.
class Answerers {
 public:
  struct Response {
    uint64_t connection = 0;
    std::string bytes;
  };

  // `ready` is called by these threads after each response, without a lock.
  Answerers(int threads, HttpLoop::Answer answer, std::function<void()> ready)
      : answer_(std::move(answer)), ready_(std::move(ready)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Answerers() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    changed_.SignalAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Push(uint64_t connection, std::string head) {
    {
      MutexLock lock(&mutex_);
      requests_.push_back({connection, std::move(head)});
    }
    changed_.Signal();
  }
  std::vector<Response> TakeResponses() {
    MutexLock lock(&mutex_);
    return std::exchange(responses_, {});
  }

 private:
  void Run() {
    mutex_.Lock();
    while (true) {
      while (!stopping_ && requests_.empty()) changed_.Wait(&mutex_);
      if (stopping_) break;
      const auto [connection, head] = std::move(requests_.front());
      requests_.pop_front();
      mutex_.Unlock();
      Response response = {.connection = connection, .bytes = answer_(head)};
      {
        MutexLock lock(&mutex_);
        responses_.push_back(std::move(response));
      }
      ready_();
      mutex_.Lock();
    }
    mutex_.Unlock();
  }

  const HttpLoop::Answer answer_;
  const std::function<void()> ready_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<uint64_t, std::string>> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<Response> responses_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the above
};

struct Connection {
  enum class Phase { kReading, kAnswering, kWriting };

  int socket = -1;
  Phase phase = Phase::kReading;
  Clock::time_point deadline;  // of reading and of writing
  std::string bytes;           // of the request, then of the response
  size_t whole = 0;            // bytes of the request; 0: its head is not complete
  size_t written = 0;
};

}  // namespace

struct HttpLoop::Parts {
  Parts(int listener, int wake, const Limits& limits, int threads, Answer answer)
      : listener_(listener),
        wake_(wake),
        limits_(limits),
        answerers_(threads, std::move(answer), [this] { Wake(); }),
        thread_([this] { Run(); }) {}

  ~Parts() {
    stopping_ = true;
    Wake();
    thread_.join();
    for (const auto& [id, connection] : connections_) (void)close(connection.socket);
  }

  void Wake() const {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof one);
  }

  void Run() {
    (void)fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
    while (!stopping_) {
      const std::vector<uint64_t> polled = Poll();
      for (Answerers::Response& response : answerers_.TakeResponses())
        BeginWriting(std::move(response));
      Accept();
      for (const uint64_t id : polled) Advance(id);
      const Clock::time_point now = Clock::now();
      std::erase_if(connections_, [now](const auto& entry) {
        const Connection& connection = entry.second;
        const bool late =
            connection.phase != Connection::Phase::kAnswering && connection.deadline <= now;
        if (late) (void)close(connection.socket);
        return late;
      });
    }
  }

  // Waits until a connection can continue, a peer connects, a response is ready, or a deadline
  // passes. Returns the connections that can continue.
  std::vector<uint64_t> Poll() {
    std::vector<pollfd> waits = {{.fd = wake_.get(), .events = POLLIN}};
    std::vector<uint64_t> ids;
    std::optional<Clock::time_point> until;
    const auto no_later = [&until](Clock::time_point when) {
      if (!until || when < *until) until = when;
    };
    for (const auto& [id, connection] : connections_) {
      if (connection.phase == Connection::Phase::kAnswering) continue;
      const bool reads = connection.phase == Connection::Phase::kReading;
      waits.push_back(
          {.fd = connection.socket, .events = static_cast<short>(reads ? POLLIN : POLLOUT)});
      ids.push_back(id);
      no_later(connection.deadline);
    }
    const bool accepts = Clock::now() >= accept_after_;
    if (accepts && (connections_.size() < limits_.connections || !ids.empty())) {
      waits.push_back({.fd = listener_.get(), .events = POLLIN});
    } else if (!accepts) {
      no_later(accept_after_);
    }
    int timeout_ms = -1;
    if (until) {
      // Rounded up, so that the deadline has passed when poll returns.
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
      timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    (void)poll(waits.data(), waits.size(), timeout_ms);
    uint64_t count = 0;
    (void)!read(wake_.get(), &count, sizeof count);
    std::vector<uint64_t> ready;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (waits[i + 1].revents != 0) ready.push_back(ids[i]);
    }
    return ready;
  }

  void Accept() {
    if (Clock::now() < accept_after_) return;
    // A bounded number per round, so that existing connections get their turn.
    for (size_t i = 0; i < limits_.connections; ++i) {
      if (connections_.size() >= limits_.connections && !CloseOldest(Connection::Phase::kReading) &&
          !CloseOldest(Connection::Phase::kWriting)) {
        return;
      }
      const int socket = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (socket < 0) {
        const bool no_room =
            errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        if (no_room && !CloseOldest(Connection::Phase::kReading)) {
          accept_after_ = Clock::now() + kNoDescriptorPause;
        }
        if (errno == ECONNABORTED || errno == EINTR) continue;
        return;
      }
      const uint64_t id = ++last_id_;
      connections_[id] = {.socket = socket, .deadline = Clock::now() + limits_.request};
      Advance(id);  // most requests have arrived already
    }
  }

  // False if no connection is in the phase.
  bool CloseOldest(Connection::Phase phase) {
    const auto oldest =
        std::find_if(connections_.begin(), connections_.end(),
                     [phase](const auto& entry) { return entry.second.phase == phase; });
    if (oldest == connections_.end()) return false;
    Close(oldest->first);
    return true;
  }

  void Close(uint64_t id) {
    (void)close(connections_.at(id).socket);
    connections_.erase(id);
  }

  void Advance(uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (found->second.phase == Connection::Phase::kReading) return Read(id, found->second);
    if (found->second.phase == Connection::Phase::kWriting) Write(id, found->second);
  }

  void Read(uint64_t id, Connection& connection) {
    char buffer[4096];
    std::string& request = connection.bytes;
    size_t& whole = connection.whole;
    const auto bound = [&] { return whole == 0 ? limits_.request_bytes : whole; };
    while (request.size() < bound()) {
      const size_t most = std::min(sizeof buffer, bound() - request.size());
      const ssize_t got = recv(connection.socket, buffer, most, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return Close(id);
      const size_t seen = request.size() < 3 ? 0 : request.size() - 3;
      request.append(buffer, static_cast<size_t>(got));
      if (whole > 0) continue;
      const size_t end = request.find(kEndOfHead, seen);
      if (end != std::string::npos) whole = WholeBytes(request, end + sizeof kEndOfHead - 1);
    }
    connection.phase = Connection::Phase::kAnswering;
    answerers_.Push(id, std::exchange(request, {}));
  }

  // Of a request with a head of these bytes: without a body that is too long to wait for.
  size_t WholeBytes(const std::string& request, size_t head) const {
    const size_t body = BodyBytes(absl::string_view(request).substr(0, head));
    return body > limits_.body_bytes ? head : head + body;
  }

  void BeginWriting(Answerers::Response response) {
    const auto writing = std::count_if(
        connections_.begin(), connections_.end(),
        [](const auto& entry) { return entry.second.phase == Connection::Phase::kWriting; });
    if (static_cast<size_t>(writing) >= limits_.responses) {
      (void)CloseOldest(Connection::Phase::kWriting);
    }
    Connection& connection = connections_.at(response.connection);
    connection.phase = Connection::Phase::kWriting;
    connection.deadline = Clock::now() + limits_.response;
    connection.bytes = std::move(response.bytes);
    Write(response.connection, connection);
  }

  void Write(uint64_t id, Connection& connection) {
    while (connection.written < connection.bytes.size()) {
      const ssize_t sent = send(connection.socket, connection.bytes.data() + connection.written,
                                connection.bytes.size() - connection.written, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) return Close(id);
      connection.written += static_cast<size_t>(sent);
    }
    // With unread bytes, close() would reset the connection before the peer has the response.
    (void)shutdown(connection.socket, SHUT_WR);
    char rest[4096];
    const size_t most = limits_.request_bytes + limits_.body_bytes;
    for (size_t got = 0; got < most; got += sizeof rest) {
      if (recv(connection.socket, rest, sizeof rest, 0) <= 0) break;
    }
    Close(id);
  }

  const OwnedDescriptor listener_;
  const OwnedDescriptor wake_;  // readable: a response is ready, or the loop is stopping
  const Limits limits_;
  std::atomic<bool> stopping_ = false;
  // Used by the loop's thread alone.
  std::map<uint64_t, Connection> connections_;  // by number, oldest first
  uint64_t last_id_ = 0;
  Clock::time_point accept_after_;
  Answerers answerers_;
  std::thread thread_;  // last: it uses the above
};

absl::StatusOr<std::unique_ptr<HttpLoop>> HttpLoop::Start(int listener, const Limits& limits,
                                                          int threads, Answer answer) {
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    const int error = errno;
    (void)close(listener);
    return ErrnoError(error, "http: making an eventfd");
  }
  return std::unique_ptr<HttpLoop>(
      new HttpLoop(std::make_unique<Parts>(listener, wake, limits, threads, std::move(answer))));
}

HttpLoop::HttpLoop(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpLoop::~HttpLoop() = default;

}  // namespace nibble
