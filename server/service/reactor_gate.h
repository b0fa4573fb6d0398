// What reactors have in common whom others call: the controller, other calls, alarms. All of them
// reach the reactor through its gate, which outlives it and is shared with them.
//
// Ownership: a gate is shared; a reactor deletes itself. Thread-safety: a reactor's fields are
// guarded by its gate's lock, which is held in whatever runs through Reach.
#ifndef NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_
#define NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "server/service/grpc_status.h"

namespace nibble {

// `Part`: the base of a reactor that has made the gate while the rest of it was not there yet.
template <class Reactor, class Part = Reactor>
class ReactorGate {
 public:
  explicit ReactorGate(Part* reactor) : reactor_(reactor) {}

  // f(reactor) with the lock held, unless it is gone.
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
  Part* reactor_;  // guarded by mutex_; null: it is gone
};

// A stream of the server that writes one message at a time and ends once. `Derived` has
//   void Pump()   the last write is done: sees to the next where MayWrite(); with the lock
//   void Leave()  nobody calls any more: lets go of what it holds; without the lock
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

  // The rest with the gate's lock held.
  bool ended() const { return ended_; }
  bool MayWrite() const { return !ended_ && !writing_; }
  // `more` follows at once: what is written may wait for it, and share its packet. Not so the
  // first, with which the stream's metadata go: gRPC says that it is written only when something
  // else has made the connection write, and nothing need.
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
  std::shared_ptr<const Message> message_;  // of the write under way, or the last
  bool begun_ = false;
  bool writing_ = false;
  bool ended_ = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_
