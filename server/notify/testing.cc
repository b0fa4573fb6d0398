#include "server/notify/testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr char kEnd[] = "\r\n\r\n";
constexpr char kLength[] = "Content-Length: ";

// The whole of a request, as far as it came.
std::string Read(int connection) {
  std::string request;
  char buffer[4096];
  while (true) {
    const size_t end = request.find(kEnd);
    const size_t length = request.find(kLength);
    if (end != std::string::npos) {
      int bytes = 0;
      if (length != std::string::npos && length < end) {
        const size_t from = length + sizeof(kLength) - 1;
        (void)absl::SimpleAtoi(request.substr(from, request.find("\r\n", from) - from), &bytes);
      }
      if (request.size() >= end + 4 + static_cast<size_t>(bytes)) return request;
    }
    const ssize_t read = recv(connection, buffer, sizeof(buffer), 0);
    if (read <= 0) return request;
    request.append(buffer, static_cast<size_t>(read));
  }
}

}  // namespace

int ListenOnLoopback(int& port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  (void)listen(listener, 64);
  socklen_t size = sizeof(address);
  (void)getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  port = ntohs(address.sin_port);
  return listener;
}

TestReceiver::TestReceiver() {
  listener_ = ListenOnLoopback(port_);
  acceptor_ = std::thread([this] { Accept(); });
}

TestReceiver::~TestReceiver() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
}

std::string TestReceiver::Url(const std::string& path) const {
  return absl::StrCat("http://127.0.0.1:", port_, path);
}

void TestReceiver::Script(std::vector<std::string> answers) {
  std::lock_guard lock(mutex_);
  answers_.assign(answers.begin(), answers.end());
}

std::string TestReceiver::Request(size_t number) {
  std::unique_lock lock(mutex_);
  const bool came =
      changed_.wait_for(lock, std::chrono::seconds(20), [&] { return requests_.size() > number; });
  return came ? requests_[number] : "none";
}

size_t TestReceiver::count() {
  std::lock_guard lock(mutex_);
  return requests_.size();
}

std::string TestReceiver::BodyOf(const std::string& request) {
  const size_t end = request.find(kEnd);
  return end == std::string::npos ? "" : request.substr(end + 4);
}

void TestReceiver::Accept() {
  while (true) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    std::lock_guard lock(mutex_);
    if (connection < 0 || ending_) {
      if (connection >= 0) close(connection);
      return;
    }
    connections_.emplace_back([this, connection] { Serve(connection); });
  }
}

void TestReceiver::Serve(int connection) {
  std::string request = Read(connection);
  std::unique_lock lock(mutex_);
  std::string answer = kOk;
  if (!answers_.empty()) {
    answer = answers_.front();
    answers_.pop_front();
  }
  requests_.push_back(std::move(request));
  changed_.notify_all();
  if (answer == kHang) {
    changed_.wait(lock, [this] { return ending_; });
  } else if (answer == kDrip) {
    constexpr char kBytes[] = "HTTP/1.1 2";
    for (size_t i = 0; !ending_; ++i) {
      if (send(connection, i < sizeof(kBytes) - 1 ? kBytes + i : "0", 1, MSG_NOSIGNAL) < 0) break;
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
  } else {
    (void)send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
  close(connection);
}

}  // namespace nibble
