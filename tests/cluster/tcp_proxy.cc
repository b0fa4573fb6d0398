#include "tests/cluster/tcp_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "client/cluster/local_processes.h"

namespace nibble {
namespace {

constexpr size_t kBuffered = 1 << 20;
constexpr size_t kFrameHeader = 9;
constexpr uint8_t kDataFrame = 0, kHeadersFrame = 1, kEndStream = 1;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int NewSocket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

void MakeQuick(int file) {
  const int yes = 1;
  (void)setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  (void)fcntl(file, F_SETFL, O_NONBLOCK);
}

// Counts the streams that end in the data that a server sends.
class FrameCounter {
 public:
  int Count(std::string_view bytes) {
    int ends = 0;
    while (!bytes.empty()) {
      const size_t skipped = std::min<size_t>(skip_, bytes.size());
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      while (skip_ == 0 && !bytes.empty() && header_.size() < kFrameHeader) {
        header_.push_back(bytes.front());
        bytes.remove_prefix(1);
      }
      if (header_.size() < kFrameHeader) continue;
      const auto at = [this](size_t i) { return static_cast<uint8_t>(header_[i]); };
      skip_ = static_cast<size_t>(at(0)) << 16 | static_cast<size_t>(at(1)) << 8 | at(2);
      if ((at(3) == kDataFrame || at(3) == kHeadersFrame) && (at(4) & kEndStream) != 0) ++ends;
      header_.clear();
    }
    return ends;
  }

 private:
  size_t skip_ = 0;  // remaining bytes of the current frame
  std::string header_;
};

// One direction of a connection.
struct Flow {
  std::string pending;  // read but not yet written
  bool ended = false;

  // False if the connection must be closed.
  bool Read(int from) {
    char bytes[65536];
    while (pending.size() < kBuffered) {
      const ssize_t got = recv(from, bytes, sizeof bytes, 0);
      if (got > 0) pending.append(bytes, static_cast<size_t>(got));
      if (got == 0) ended = true;
      if (got <= 0) return got == 0 || errno == EAGAIN || errno == EINTR;
    }
    return true;
  }
  bool Write(int to) {
    while (!pending.empty()) {
      const ssize_t sent = send(to, pending.data(), pending.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      pending.erase(0, static_cast<size_t>(sent));
    }
    return true;
  }
};

}  // namespace

struct TcpProxy::Pair {
  int near = -1;
  int far = -1;
  Flow there, back;
  FrameCounter answers;
  bool broken = false;

  ~Pair() {
    for (const int file : {near, far}) {
      if (file >= 0) close(file);
    }
  }
};

TcpProxy::TcpProxy(int target, int port) : target_(target) {
  port_ = port != 0 ? port : ChooseFreePort().value();
  listener_ = NewSocket();
  const int yes = 1;
  (void)setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr_in address = Loopback(port_);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 64) != 0) {
    std::abort();
  }
  (void)fcntl(listener_, F_SETFL, O_NONBLOCK);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Serve(); });
}

TcpProxy::~TcpProxy() {
  {
    MutexLock lock(&mutex_);
    end_ = true;
  }
  Wake();
  thread_.join();
  close(listener_);
  close(wake_);
}

std::string TcpProxy::address() const { return "127.0.0.1:" + std::to_string(port_); }

void TcpProxy::Wake() { (void)eventfd_write(wake_, 1); }

void TcpProxy::Set(Mode mode) {
  MutexLock lock(&mutex_);
  wanted_ = mode;
  lost_ = 0;
  const int64_t change = ++changes_;
  Wake();
  while (in_effect_ < change) changed_.Wait(&mutex_);
}

bool TcpProxy::AwaitLost(int answers, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(&mutex_);
  while (lost_ < answers) {
    if (changed_.WaitUntil(&mutex_, deadline)) return lost_ >= answers;
  }
  return true;
}

void TcpProxy::Accept(std::vector<std::unique_ptr<Pair>>& pairs) {
  const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (near < 0) return;
  auto pair = std::make_unique<Pair>();
  pair->near = near;
  if (mode_ == Mode::kCut) return;
  pair->far = NewSocket();
  const sockaddr_in address = Loopback(target_);
  // On loopback a connection succeeds or fails at once.
  if (connect(pair->far, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  MakeQuick(pair->near);
  MakeQuick(pair->far);
  pairs.push_back(std::move(pair));
}

void TcpProxy::Move(Pair& pair) {
  if (mode_ == Mode::kStall) return;
  bool whole = pair.there.Read(pair.near) && pair.there.Write(pair.far);
  const size_t before = pair.back.pending.size();
  whole = whole && pair.back.Read(pair.far);
  const int ends = pair.answers.Count(std::string_view(pair.back.pending).substr(before));
  if (mode_ == Mode::kMute) {
    pair.back.pending.clear();
    if (ends > 0) {
      MutexLock lock(&mutex_);
      lost_ += ends;
      changed_.SignalAll();
    }
  }
  whole = whole && pair.back.Write(pair.near);
  pair.broken = !whole || (pair.there.ended && pair.there.pending.empty()) ||
                (pair.back.ended && pair.back.pending.empty());
}

void TcpProxy::Serve() {
  std::vector<std::unique_ptr<Pair>> pairs;
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (end_) return;
      if (in_effect_ != changes_) {
        // Data passed before the change cannot be recalled.
        mode_ = wanted_;
        if (mode_ == Mode::kCut) pairs.clear();
        in_effect_ = changes_;
        changed_.SignalAll();
      }
    }
    std::vector<pollfd> waits = {{.fd = wake_, .events = POLLIN},
                                 {.fd = listener_, .events = POLLIN}};
    for (const auto& pair : pairs) {
      if (mode_ == Mode::kStall) break;
      for (const auto& [file, in, out] : {std::tuple(pair->near, &pair->there, &pair->back),
                                          std::tuple(pair->far, &pair->back, &pair->there)}) {
        const int events =
            (in->pending.size() < kBuffered ? POLLIN : 0) | (out->pending.empty() ? 0 : POLLOUT);
        waits.push_back({.fd = file, .events = static_cast<short>(events)});
      }
    }
    (void)poll(waits.data(), waits.size(), -1);
    eventfd_t ignored;
    (void)eventfd_read(wake_, &ignored);
    for (const auto& pair : pairs) Move(*pair);
    std::erase_if(pairs, [](const auto& pair) { return pair->broken; });
    if (waits[1].revents != 0) Accept(pairs);
  }
}

}  // namespace nibble
