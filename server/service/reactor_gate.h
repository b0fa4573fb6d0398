// A base for reactors that are called from outside gRPC: by the controller, other calls and alarms.
// These callers reach a reactor only through its gate, which they share and which outlives it.
//
// Ownership: a gate is shared; a reactor deletes itself. Thread-safety: the gate's lock guards the
// reactor's fields and is held while a function runs through Reach.
#ifndef NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_
#define NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "server/service/wire.h"

namespace nibble {

// `Part`: the base class of the reactor that creates the gate, before the derived class is
// constructed.
template <class Reactor, class Part = Reactor>
class ReactorGate {
 public:
  explicit ReactorGate(Part* reactor) : reactor_(reactor) {}

  // Calls f(reactor) with the lock held, unless the reactor is gone.
  template <class F>
  void Reach(F f) {
    std::lock_guard lock(mutex_);
    if (reactor_ != nullptr) f(static_cast<Reactor&>(*reactor_));
  }
  void Close() {
    std::lock_guard lock(mutex_);
    reactor_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Part* reactor_;  // guarded by mutex_; null once the reactor is gone
};

// A server stream that writes one message at a time and ends once. `Derived` has
//   void Pump()   called with the lock after each write; writes the next message if MayWrite()
//   void Leave()  called without the lock when the stream is over; releases its resources
template <class Derived, class Base, class Message>
class GatedStream : public Base {
 public:
  using Gate = ReactorGate<Derived, GatedStream>;

  GatedStream() : gate_(std::make_shared<Gate>(this)) {}

  void OnWriteDone(bool ok) override {
    gate_->Reach([ok](Derived& self) {
      self.writing_ = false;
      if (ok) {
        self.Pump();
      } else {
        self.End(absl::CancelledError("the stream was broken off"));
      }
    });
  }

  void OnCancel() override {
    gate_->Reach(
        [](Derived& self) { self.End(absl::CancelledError("the stream was broken off")); });
  }

  void OnDone() override {
    static_cast<Derived*>(this)->Leave();
    gate_->Close();
    delete static_cast<Derived*>(this);
  }

 protected:
  const std::shared_ptr<Gate>& gate() const { return gate_; }

  // The methods below are called with the gate's lock held.
  bool ended() const { return ended_; }
  bool MayWrite() const { return !ended_ && !writing_; }
  // `more`: another message follows at once, so this one may wait and share its packet. This does
  // not apply to the first message, which carries the stream's metadata: gRPC would delay it until
  // something else makes the connection write, which may never happen.
  void Write(std::shared_ptr<const Message> message, bool more = false) {
    message_ = std::move(message);
    writing_ = true;
    grpc::WriteOptions options;
    if (more && begun_) options.set_buffer_hint();
    begun_ = true;
    this->StartWrite(message_.get(), options);
  }
  void Write(Message message) { Write(std::make_shared<const Message>(std::move(message))); }
  void End(const absl::Status& status) {
    if (std::exchange(ended_, true)) return;
    this->Finish(ToGrpc(status));
  }

 private:
  const std::shared_ptr<Gate> gate_;
  std::shared_ptr<const Message> message_;  // of the write in progress, or the last one
  bool begun_ = false;
  bool writing_ = false;
  bool ended_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_
