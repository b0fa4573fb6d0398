// The calls of one streaming service of the peer server: a bounded number at once, of which those
// whose readers take nothing are cut off with a reason. A synchronous write of gRPC waits for its
// reader in the thread of its call, so a thread of this class looks at all calls periodically.
//
// Ownership: StreamReaders outlives its Readings; a Reading borrows the call's context and lasts no
// longer than the call. Thread-safety: StreamReaders: all methods; Reading: of its call's thread.
#ifndef NIBBLE_WORKER_AGENT_STREAM_READERS_H_
#define NIBBLE_WORKER_AGENT_STREAM_READERS_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/stall/stall_look.h"
#include "worker/agent/reader_limits.h"

namespace nibble {

class StreamReaders {
 public:
  // `what`: what they read ("shards"). `code`: of the statuses of this class.
  StreamReaders(std::string what, absl::StatusCode code, ReaderLimits limits);
  ~StreamReaders();
  StreamReaders(const StreamReaders&) = delete;
  StreamReaders& operator=(const StreamReaders&) = delete;

  // The writes of one call.
  class Reading {
   public:
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

    // False if the reader has disconnected, or was cut off; the call's status is of no effect then.
    template <class Message>
    bool Write(grpc::ServerWriter<Message>& writer, const Message& message) {
      waits_ = true;
      const bool taken = writer.Write(message);
      waits_ = false;
      ++taken_;
      return taken;
    }

   private:
    friend class StreamReaders;
    Reading(StreamReaders& readers, grpc::ServerContext& context)
        : readers_(readers), context_(context) {}

    StreamReaders& readers_;
    grpc::ServerContext& context_;
    std::atomic<bool> waits_ = false;  // a message for the reader
    std::atomic<int64_t> taken_ = 0;   // messages
    StallLook look_;                   // under the lock of readers_
  };

  // The place of a call; an error with `code`: there is none.
  absl::StatusOr<std::unique_ptr<Reading>> Begin(grpc::ServerContext& context);

 private:
  void Serve();
  void CutStalled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string what_;
  const absl::StatusCode code_;
  const ReaderLimits limits_;
  // Also held while a call is cut off, so that it does not end meanwhile; that waits for nobody.
  Mutex mutex_;
  CondVar changed_;
  std::set<Reading*> readings_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_STREAM_READERS_H_
