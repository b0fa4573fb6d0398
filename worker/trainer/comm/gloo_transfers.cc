#include "worker/trainer/comm/gloo_transfers.h"

#include <chrono>
#include <exception>

namespace nibble {
namespace {

// Long enough that Gloo's own timeout never expires.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24);
constexpr std::chrono::milliseconds kShortestWait{1};

}  // namespace

// While alive, the ticker interrupts waits on this buffer.
class WaitTicker::Watch {
 public:
  Watch(WaitTicker& ticker, gloo::transport::UnboundBuffer* in, gloo::transport::UnboundBuffer* out)
      : ticker_(ticker) {
    Set(in, out);
  }
  ~Watch() { Set(nullptr, nullptr); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void Set(gloo::transport::UnboundBuffer* in, gloo::transport::UnboundBuffer* out) {
    const MutexLock lock(&ticker_.mutex_);
    ticker_.in_ = in;
    ticker_.out_ = out;
  }
  WaitTicker& ticker_;
};

WaitTicker::WaitTicker() : thread_([this] { Run(); }) {}

WaitTicker::~WaitTicker() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
  }
  stopping_.Signal();
  thread_.join();
}

void WaitTicker::Run() {
  const MutexLock lock(&mutex_);
  while (!stop_) {
    // Under the lock, so that the buffer still exists. Neither call waits.
    if (in_ != nullptr) in_->abortWaitRecv();
    if (out_ != nullptr) out_->abortWaitSend();
    (void)stopping_.WaitFor(&mutex_, kTick);
  }
}

bool WaitTicker::WaitIn(gloo::transport::UnboundBuffer& buffer) {
  const Watch watch(*this, &buffer, nullptr);
  return buffer.waitRecv(kForever);
}

bool WaitTicker::WaitOut(gloo::transport::UnboundBuffer& buffer) {
  const Watch watch(*this, nullptr, &buffer);
  return buffer.waitSend(kForever);
}

void Transfers::Send(int peer, std::span<const std::byte> message) {
  if (message.empty()) return;
  BufferPtr& buffer = peers_[peer].out.emplace_back(
      context_.createUnboundBuffer(const_cast<std::byte*>(message.data()), message.size()));
  buffer->send(peer, tag_);
}

void Transfers::Receive(int peer, std::span<std::byte> message) {
  if (message.empty()) return;
  BufferPtr& buffer =
      peers_[peer].in.emplace_back(context_.createUnboundBuffer(message.data(), message.size()));
  buffer->recv(peer, tag_);
}

void Transfers::AwaitIn(int peer, absl::FunctionRef<void()> check) {
  std::deque<BufferPtr>& messages = peers_[peer].in;
  if (messages.empty()) return;
  while (!ticker_.WaitIn(*messages.front())) check();
  messages.pop_front();
}

void Transfers::AwaitOut(int peer, absl::FunctionRef<void()> check) {
  std::deque<BufferPtr>& messages = peers_[peer].out;
  if (messages.empty()) return;
  while (!ticker_.WaitOut(*messages.front())) check();
  messages.pop_front();
}

std::vector<int> Transfers::Unfinished() {
  std::vector<int> unfinished;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    bool all = true;
    try {
      // The first wait may still see the abort of the tick that ended the last one; the second does
      // not.
      for (const BufferPtr& buffer : peers_[peer].in) {
        all = all && (buffer->waitRecv(kShortestWait) || buffer->waitRecv(kShortestWait));
      }
      for (const BufferPtr& buffer : peers_[peer].out) {
        all = all && (buffer->waitSend(kShortestWait) || buffer->waitSend(kShortestWait));
      }
    } catch (const std::exception&) {
      all = false;
    }
    if (!all) unfinished.push_back(peer);
  }
  return unfinished;
}

}  // namespace nibble
