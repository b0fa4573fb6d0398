// For tests: a wire that can be cut. Connections to its port go on to another; on demand nothing
// passes, or nothing passes back, or every connection is broken and none is made.
//
// It follows the frames of HTTP/2 that come back, so that a test knows when a whole answer was on
// the wire and was lost there.
//
// Ownership: owns its sockets and one thread. Thread-safety: all methods.
#ifndef NIBBLE_TESTS_CLUSTER_TCP_PROXY_H_
#define NIBBLE_TESTS_CLUSTER_TCP_PROXY_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace nibble {

class TcpProxy {
 public:
  enum class Mode : uint8_t {
    kPass,
    kStall,  // connections are taken and kept, and nothing passes
    kMute,   // what comes back is lost
    kCut,    // connections are broken, and new ones at once
  };

  // To 127.0.0.1:`target`; port 0 takes a free one.
  explicit TcpProxy(int target, int port = 0);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const { return port_; }
  std::string address() const;
  // In force when it returns. What was lost stays lost.
  void Set(Mode mode);
  // Until so many answers (ends of HTTP/2 streams) were lost since the last Set; false where they
  // are not in time.
  bool AwaitLost(int answers, std::chrono::milliseconds patience);

 private:
  struct Pair;

  void Serve();
  void Accept(std::vector<std::unique_ptr<Pair>>& pairs);
  void Move(Pair& pair);
  void Wake();

  const int target_;
  int port_ = 0;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool end_ = false;
  Mode wanted_ = Mode::kPass;
  int64_t changes_ = 0;   // of `wanted_`
  int64_t in_force_ = 0;  // the change that Serve has seen
  int lost_ = 0;

  Mode mode_ = Mode::kPass;  // of the thread alone
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_TCP_PROXY_H_
