// The listening sockets of a server, and bounds on its connections: on all together, and on those
// of one address, so that nobody can take them all.
//
// The server gets the accepted sockets and owns them. The gate keeps a duplicate of each, from
// which it sees when both sides have closed: a server must shut a connection down before it closes
// its descriptor, as gRPC does. So a connection costs two descriptors.
//
// A connection that ends without a call, after it has sent something, is reported: with TLS its
// handshake has most likely failed, which the server itself says nothing about. One that has sent
// nothing, such as a probe of its port, is not.
//
// Ownership: owns its sockets and its thread. Thread-safety: all methods. Callbacks run in its
// thread, without a lock.
#ifndef NIBBLE_COMMON_CONNECTIONS_CONNECTION_GATE_H_
#define NIBBLE_COMMON_CONNECTIONS_CONNECTION_GATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/connections/slowed_addresses.h"
#include "common/descriptor.h"
#include "common/listen_address.h"
#include "common/mutex.h"

namespace nibble {

struct ConnectionLimits {
  size_t all = 16'384;
  size_t per_address = 4096;
};

class ConnectionGate {
 public:
  struct Options {
    ConnectionLimits limits;
    int64_t answer_ms = 20'000;  // a peer that acknowledges no data for this long is gone
    // Takes a connection, non-blocking, and owns it from then on. Required.
    std::function<void(int listener, int connection)> accepted;
    // A connection was closed at once: ResourceExhausted states the bound. May be null.
    std::function<void(const std::string& from, const absl::Status& why)> refused;
    // A connection that had sent something ended without a call. May be null.
    std::function<void(const std::string& from)> silent;
  };

  // Listens, and accepts nothing yet; the system's connects wait. A wildcard address listens on
  // every interface, of IPv4 and IPv6. Unavailable: no address of the host can be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(const ListenAddress& address,
                                                                Options options);
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  int port() const { return port_; }
  // Begins to accept. Called once.
  void Start();
  // Closes the listening sockets; connections stay.
  void StopAccepting();
  // There was a call from this peer, as gRPC names it: "ipv4:10.0.0.7:41234". Returns whether it is
  // the first of its connection.
  bool Called(absl::string_view peer);
  // From this time on CloseExpired closes the peer's connection.
  void Expires(absl::string_view peer, int64_t unix_ms);
  // Shuts down the connections that have expired. Returns their peers.
  std::vector<std::string> CloseExpired(int64_t now_unix_ms);
  // Shuts down the peer's connection because of what it does, and slows down new ones of its
  // address (SlowedAddresses). False: it has none that is open.
  bool End(absl::string_view peer);
  size_t open() const;

 private:
  struct Connection {
    OwnedDescriptor watched;  // a duplicate
    std::string from;         // as gRPC names it
    std::string address;      // `from` without its port
    bool called = false;
    bool ended = false;           // by End
    int64_t expires_unix_ms = 0;  // 0: never
  };
  // A closed connection whose call may still be on its way to Called.
  struct Closed {
    int64_t due_ms = 0;
    uint64_t number = 0;
    bool spoke = false;
  };

  explicit ConnectionGate(Options options);
  absl::Status Open(const ListenAddress& address);
  void Serve();
  void Accept(int listener);
  void Admit(int listener, OwnedDescriptor connection, std::string from);
  // The duplicate that is watched; ResourceExhausted: a bound is reached, or there are no
  // descriptors.
  absl::Status Add(int connection, const std::string& from);
  void HandleClosed(uint64_t number);
  Connection* Find(absl::string_view peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportSilent();

  const Options options_;
  const OwnedDescriptor epoll_, wake_;
  int port_ = 0;
  std::vector<OwnedDescriptor> listeners_;  // unchanged once the thread runs, until it ended

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // accepts no more
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;    // the thread ends
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint64_t> by_peer_ ABSL_GUARDED_BY(mutex_);  // newest of `from`
  absl::flat_hash_map<std::string, size_t> by_address_ ABSL_GUARDED_BY(mutex_);
  SlowedAddresses slowed_ ABSL_GUARDED_BY(mutex_);
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;  // of connections_, those that are not closed
  std::deque<Closed> closed_;                // of the thread alone

  std::thread thread_;  // last: it uses the above
};

// Raises the number of descriptors that this process may open to the most that the system allows
// it. Returns that number.
size_t RaiseDescriptorLimit();

}  // namespace nibble

#endif  // NIBBLE_COMMON_CONNECTIONS_CONNECTION_GATE_H_
