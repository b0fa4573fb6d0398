// The messages in flight of one exchange over Gloo, and bounded waits for them.
//
// Gloo does not report a failed connection to a receiver that already has part of the message: that
// wait would last until Gloo's own timeout, which closes every connection of the group. So a
// WaitTicker interrupts each wait at a steady interval, and the caller checks its peers each time.
//
// Everything here may throw Gloo's exceptions. Ownership: borrows context, ticker and the memory of
// the messages. Thread-safety: one thread at a time; the ticker has its own thread.
#ifndef NIBBLE_WORKER_TRAINER_COMM_GLOO_TRANSFERS_H_
#define NIBBLE_WORKER_TRAINER_COMM_GLOO_TRANSFERS_H_

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/mutex.h"

namespace nibble {

class WaitTicker {
 public:
  static constexpr std::chrono::milliseconds kTick{50};

  WaitTicker();
  ~WaitTicker();
  WaitTicker(const WaitTicker&) = delete;
  WaitTicker& operator=(const WaitTicker&) = delete;

  // Waits for a receive into, or a send from, this buffer; false if a tick came first.
  bool WaitIn(gloo::transport::UnboundBuffer& buffer);
  bool WaitOut(gloo::transport::UnboundBuffer& buffer);

 private:
  class Watch;
  void Run();

  Mutex mutex_;
  CondVar stopping_;
  // The buffers that are being waited for; null: none.
  gloo::transport::UnboundBuffer* in_ ABSL_GUARDED_BY(mutex_) = nullptr;
  gloo::transport::UnboundBuffer* out_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class Transfers {
 public:
  Transfers(gloo::Context& context, WaitTicker& ticker, uint64_t tag)
      : context_(context), ticker_(ticker), tag_(tag), peers_(context.size) {}

  // An empty span is not sent.
  void Send(int peer, std::span<const std::byte> message);
  void Receive(int peer, std::span<std::byte> message);

  // Waits for the oldest message from or to this peer, if there is one; `check` is called at each
  // tick and ends the wait by throwing.
  void AwaitIn(int peer, absl::FunctionRef<void()> check);
  void AwaitOut(int peer, absl::FunctionRef<void()> check);

  // After a failed exchange: the peers with unfinished messages. Closes every connection of the
  // group.
  std::vector<int> Unfinished();
  void Clear() { peers_.clear(); }

 private:
  using BufferPtr = std::unique_ptr<gloo::transport::UnboundBuffer>;
  struct Peer {
    std::deque<BufferPtr> in, out;
  };

  gloo::Context& context_;
  WaitTicker& ticker_;
  const uint64_t tag_;
  std::vector<Peer> peers_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_GLOO_TRANSFERS_H_
