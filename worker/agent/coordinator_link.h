// The daemon's stream to the coordinator (nibble.v1.WorkerLink): a report at every beat and
// whenever there is news, each one whole; what comes back is the complete desired state. A stream
// that breaks is opened again, after waits that grow; nothing is lost by it, since the first report
// of a stream says everything.
//
// Ownership: owns two threads. Thread-safety: all methods from any thread; the callbacks are called
// from the link's threads, `report` and `lost` from one, `desired` from the other, with nothing
// locked.
#ifndef NIBBLE_WORKER_AGENT_COORDINATOR_LINK_H_
#define NIBBLE_WORKER_AGENT_COORDINATOR_LINK_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/backoff.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/link_security.h"

namespace nibble {

class CoordinatorLink {
 public:
  struct Options {
    std::string target;  // host:port
    LinkSecurity security;
    std::chrono::milliseconds beat{1000};
    Backoff::Options backoff;
    // What is, now, for report `number` of a stream; the first, 1, has to say everything.
    std::function<v1::ConnectRequest(int64_t number)> report;
    // What should be, whole.
    std::function<void(const v1::ConnectResponse& response)> desired;
    // A stream has ended, with this; the next try comes after `wait`. May be null.
    std::function<void(const absl::Status& status, std::chrono::milliseconds wait)> lost;
  };

  explicit CoordinatorLink(Options options);
  ~CoordinatorLink();
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // There is news: report now.
  void Nudge();

 private:
  struct Stream;
  void Run();
  absl::Status Converse(bool& heard);
  void Read(Stream& stream, bool& heard);
  v1::ConnectRequest Numbered(int64_t number) const;
  // Until the next beat, news, or the end; false at the end.
  bool AwaitBeat();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stopping_ = false;
  bool news_ = false;
  bool broken_ = false;       // the reader has come to the stream's end
  int64_t lease_ms_ = 0;      // as the coordinator last said; 0: it has not
  Stream* stream_ = nullptr;  // that is open
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_COORDINATOR_LINK_H_
