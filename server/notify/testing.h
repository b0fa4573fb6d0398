// Receivers of posts on loopback, for tests: TestReceiver answers each request as scripted,
// TlsReceiver uses TLS with its own certificate for "localhost".
//
// Ownership: they own their sockets and threads. Thread-safety: TestReceiver: all methods;
// TlsReceiver: none.
#ifndef NIBBLE_SERVER_NOTIFY_TESTING_H_
#define NIBBLE_SERVER_NOTIFY_TESTING_H_

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace nibble {

// Returns a socket that listens at a free port, and the port.
int ListenOnLoopback(int& port);

class TestReceiver {
 public:
  // Hangs: the connection stays open and nothing is sent.
  static constexpr char kHang[] = "";
  // Sends a byte of a status line every few milliseconds, forever.
  static constexpr char kDrip[] = "drip";
  static constexpr char kOk[] = "HTTP/1.1 204 No Content\r\n\r\n";
  static constexpr char kError[] = "HTTP/1.1 500 Internal Server Error\r\n\r\n";

  TestReceiver();
  ~TestReceiver();

  int port() const { return port_; }
  std::string Url(const std::string& path = "/hook") const;

  // The answers to the next requests, in order; kOk after these.
  void Script(std::vector<std::string> answers);
  // Waits for the request with this number, from 0, and returns its text; "none" after 20 seconds.
  std::string Request(size_t number);
  size_t count();

  static std::string BodyOf(const std::string& request);

 private:
  void Accept();
  void Serve(int connection);

  int listener_ = -1;
  int port_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> connections_;  // used by the acceptor's thread, then the destructor
  std::thread acceptor_;
};

class TlsReceiver {
 public:
  // Answers every request with 204. Its certificate is written to `certificate_path`.
  explicit TlsReceiver(const std::string& certificate_path);
  ~TlsReceiver();

  int port() const { return port_; }

 private:
  struct Parts;
  void Accept();

  const std::unique_ptr<Parts> parts_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_TESTING_H_
