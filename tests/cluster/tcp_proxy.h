// For tests: a TCP proxy whose connections can be stalled, muted (replies are dropped) or cut.
//
// It parses the HTTP/2 frames of replies, so that a test knows when a complete reply was dropped.
//
// Ownership: owns its sockets and one thread. Thread-safety: all methods.
#ifndef NIBBLE_TESTS_CLUSTER_TCP_PROXY_H_
#define NIBBLE_TESTS_CLUSTER_TCP_PROXY_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace nibble {

class TcpProxy {
 public:
  enum class Mode : uint8_t {
    kPass,
    kStall,  // connections are accepted and kept, but transfer nothing
    kMute,   // data from the target is dropped
    kCut,    // connections are closed, new ones at once
  };

  // Connects to 127.0.0.1:`target`; listens on `port`, 0 for any free one.
  explicit TcpProxy(int target, int port = 0);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const { return port_; }
  std::string address() const;
  // In effect on return. Dropped data stays dropped.
  void Set(Mode mode);
  // New connections go to this port. Set kCut, then kPass, to move the present ones.
  void SetTarget(int port) { target_ = port; }
  // Waits until this number of replies (ends of HTTP/2 streams) was dropped since the last Set();
  // false on a timeout.
  bool AwaitLost(int answers, std::chrono::milliseconds patience);

 private:
  struct Pair;

  void Serve();
  void Accept(std::vector<std::unique_ptr<Pair>>& pairs);
  void Move(Pair& pair);
  void Wake();

  std::atomic<int> target_;
  int port_ = 0;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd
  std::thread thread_;

  Mutex mutex_;
  CondVar changed_;
  bool end_ ABSL_GUARDED_BY(mutex_) = false;
  Mode wanted_ ABSL_GUARDED_BY(mutex_) = Mode::kPass;
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;    // of `wanted_`
  int64_t in_effect_ ABSL_GUARDED_BY(mutex_) = 0;  // the change that Serve has seen
  int lost_ ABSL_GUARDED_BY(mutex_) = 0;

  Mode mode_ = Mode::kPass;  // used by the thread only
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_TCP_PROXY_H_
