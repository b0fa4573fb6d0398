// A receiver with TLS on loopback, for tests: its certificate is its own, for "localhost".
//
// Ownership: owns its socket and thread. Thread-safety: none.
#ifndef NIBBLE_SERVER_NOTIFY_TLS_RECEIVER_H_
#define NIBBLE_SERVER_NOTIFY_TLS_RECEIVER_H_

#include <memory>
#include <string>
#include <thread>

namespace nibble {

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

#endif  // NIBBLE_SERVER_NOTIFY_TLS_RECEIVER_H_
