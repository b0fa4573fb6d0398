// A base for reactors that are called from outside gRPC: by the controller, other calls and alarms.
// These callers reach a reactor only through its gate, which they share and which outlives it.
//
// Ownership: a gate is shared; a reactor deletes itself. Thread-safety: the gate's lock guards the
// reactor's fields and is held while one of its methods runs through Reach. Such a method may call
// the controller, which never calls back under a lock.
#ifndef NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_
#define NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/stall/cut_off.h"
#include "common/stall/stall_look.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/service/wire.h"

namespace nibble {

// `Part`: the base class of the reactor that creates the gate, before the derived class is
// constructed.
template <class Reactor, class Part = Reactor>
class ReactorGate {
 public:
  explicit ReactorGate(Part* reactor) : reactor_(reactor) {}

  // Calls the reactor's method with the lock held, unless the reactor is gone. Clang's analysis
  // does not follow the call: the method declares that it requires `mutex`.
  template <class Method, class... Arguments>
  void Reach(Method method, Arguments&&... arguments) {
    MutexLock lock(&mutex);
    if (reactor_ == nullptr) return;
    std::invoke(method, static_cast<Reactor&>(*reactor_), std::forward<Arguments>(arguments)...);
  }
  void Close() {
    MutexLock lock(&mutex);
    reactor_ = nullptr;
  }

  Mutex mutex;

 private:
  Part* reactor_ ABSL_GUARDED_BY(mutex);  // null once the reactor is gone
};

// A server stream that writes one message at a time and ends once. `Derived` has
//   void Pump()   called with the lock after each write; writes the next message if MayWrite()
//   void Leave()  called without the lock when the stream is over; releases its resources
//
// gRPC sends the status of a stream after the message that is being written. If the reader does not
// take that message within `reason_ms` of the stream's end, it is dropped, and the status sent
// without it and without details: a reader that takes nothing keeps no message and no place, and
// still receives the reason when it reads on.
template <class Derived, class Base, class Message>
class GatedStream : public Base {
 public:
  using Gate = ReactorGate<Derived, GatedStream>;
  static constexpr int64_t kReasonMs = 10'000;

  explicit GatedStream(grpc::CallbackServerContext& context, int64_t reason_ms = kReasonMs)
      : gate_(std::make_shared<Gate>(this)), context_(context), reason_ms_(reason_ms) {}

  void OnWriteDone(bool ok) override { gate_->Reach(&GatedStream::HandleWritten, ok); }

  void OnCancel() override { gate_->Reach(&GatedStream::End, Cancelled()); }

  void OnDone() override {
    static_cast<Derived*>(this)->Leave();
    gate_->Close();
    delete static_cast<Derived*>(this);
  }

 protected:
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) { return ended_; }
  bool MayWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) { return !ended_ && !writing_; }
  // `more`: another message follows at once, so this one may wait and share its packet. This does
  // not apply to the first message, which carries the stream's metadata: gRPC would delay it until
  // something else makes the connection write, which may never happen.
  void Write(std::shared_ptr<const Message> message, bool more = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    message_ = std::move(message);
    writing_ = true;
    ++writes_;
    grpc::WriteOptions options;
    if (more && begun_) options.set_buffer_hint();
    begun_ = true;
    this->StartWrite(message_.get(), options);
  }
  void Write(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    Write(std::make_shared<const Message>(std::move(message)));
  }
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (std::exchange(ended_, true)) return;
    if (writing_) {
      drop_.emplace().Set(std::chrono::system_clock::now() + std::chrono::milliseconds(reason_ms_),
                          [gate = gate_, status](bool is_time) {
                            if (is_time) gate->Reach(&GatedStream::DropMessage, status);
                          });
    }
    this->Finish(ToGrpc(status));
  }
  // For how long, in ms, calls of this method have seen the reader not take the message that waits
  // for it.
  int64_t StalledMs(int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    return look_.Look(now_ms, writing_, writes_);
  }

  const std::shared_ptr<Gate> gate_;

 private:
  static absl::Status Cancelled() {
    return absl::CancelledError("the caller cancelled the stream");
  }

  void HandleWritten(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    writing_ = false;
    if (ok) {
      static_cast<Derived*>(this)->Pump();
    } else {
      End(Cancelled());
    }
  }

  // `status`: that of the stream. Its call lasts as long as this reactor.
  void DropMessage(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (!writing_) return;
    CutOff(context_.c_call(), status.ok() ? ReadsTooSlowly("the stream", reason_ms_, reason_ms_,
                                                           "its last message is lost")
                                          : status);
  }

  grpc::CallbackServerContext& context_;
  const int64_t reason_ms_;
  // Set at the end if a message waits for the reader. Its callback owns the gate alone, so it may
  // run after this reactor is gone.
  std::optional<grpc::Alarm> drop_ ABSL_GUARDED_BY(gate_->mutex);
  StallLook look_ ABSL_GUARDED_BY(gate_->mutex);
  int64_t writes_ ABSL_GUARDED_BY(gate_->mutex) = 0;  // begun
  // The message of the write in progress, or of the last one.
  std::shared_ptr<const Message> message_ ABSL_GUARDED_BY(gate_->mutex);
  bool begun_ ABSL_GUARDED_BY(gate_->mutex) = false;
  bool writing_ ABSL_GUARDED_BY(gate_->mutex) = false;
  bool ended_ ABSL_GUARDED_BY(gate_->mutex) = false;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REACTOR_GATE_H_
