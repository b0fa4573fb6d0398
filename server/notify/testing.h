// A receiver of posts on loopback, for tests: it answers each request as its script says.
//
// Ownership: owns its socket and threads. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_NOTIFY_TESTING_H_
#define NIBBLE_SERVER_NOTIFY_TESTING_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace nibble {

// A socket that listens at a free port, which it gives.
int ListenOnLoopback(int& port);

class TestReceiver {
 public:
  // Hangs: the connection stays open and nothing is sent.
  static constexpr char kHang[] = "";
  // A byte of a status line each few milliseconds, for ever.
  static constexpr char kDrip[] = "drip";
  static constexpr char kOk[] = "HTTP/1.1 204 No Content\r\n\r\n";
  static constexpr char kError[] = "HTTP/1.1 500 Internal Server Error\r\n\r\n";

  TestReceiver();
  ~TestReceiver();

  int port() const { return port_; }
  std::string Url(const std::string& path = "/hook") const;

  // What the next requests are answered with, in order; kOk behind these.
  void Script(std::vector<std::string> answers);
  // Waits for the request with this number, from 0, and returns it whole; "none" after 20 seconds.
  std::string Request(size_t number);
  size_t count();

  static std::string BodyOf(const std::string& request);

 private:
  void Accept();
  void Serve(int connection);

  int listener_ = -1;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::string> answers_;
  std::vector<std::string> requests_;
  bool ending_ = false;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_TESTING_H_
