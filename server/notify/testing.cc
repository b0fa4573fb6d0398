#include "server/notify/testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

constexpr char kEnd[] = "\r\n\r\n";
constexpr char kLength[] = "Content-Length: ";

// The request, as far as it was received.
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
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  changed_.SignalAll();
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
}

std::string TestReceiver::Url(const std::string& path) const {
  return absl::StrCat("http://127.0.0.1:", port_, path);
}

void TestReceiver::Script(std::vector<std::string> answers) {
  MutexLock lock(&mutex_);
  answers_.assign(answers.begin(), answers.end());
}

std::string TestReceiver::Request(size_t number) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  MutexLock lock(&mutex_);
  while (requests_.size() <= number) {
    if (changed_.WaitUntil(&mutex_, deadline)) return "none";
  }
  return requests_[number];
}

size_t TestReceiver::count() {
  MutexLock lock(&mutex_);
  return requests_.size();
}

std::string TestReceiver::BodyOf(const std::string& request) {
  const size_t end = request.find(kEnd);
  return end == std::string::npos ? "" : request.substr(end + 4);
}

void TestReceiver::Accept() {
  while (true) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    MutexLock lock(&mutex_);
    if (connection < 0 || ending_) {
      if (connection >= 0) close(connection);
      return;
    }
    connections_.emplace_back([this, connection] { Serve(connection); });
  }
}

void TestReceiver::Serve(int connection) {
  std::string request = Read(connection);
  MutexLock lock(&mutex_);
  std::string answer = kOk;
  if (!answers_.empty()) {
    answer = answers_.front();
    answers_.pop_front();
  }
  requests_.push_back(std::move(request));
  changed_.SignalAll();
  if (answer == kHang) {
    while (!ending_) changed_.Wait(&mutex_);
  } else if (answer == kDrip) {
    constexpr char kBytes[] = "HTTP/1.1 2";
    for (size_t i = 0; !ending_; ++i) {
      if (send(connection, i < sizeof(kBytes) - 1 ? kBytes + i : "0", 1, MSG_NOSIGNAL) < 0) break;
      changed_.WaitFor(&mutex_, std::chrono::milliseconds(5));
    }
  } else {
    (void)send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
  close(connection);
}

struct TlsReceiver::Parts {
  ~Parts() {
    SSL_CTX_free(context);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
};

TlsReceiver::TlsReceiver(const std::string& certificate_path) : parts_(std::make_unique<Parts>()) {
  X509* const certificate = parts_->certificate;
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
  X509_set_pubkey(certificate, parts_->key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* const names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost");
  X509_add_ext(certificate, names, -1);
  X509_EXTENSION_free(names);
  X509_sign(certificate, parts_->key, EVP_sha256());
  SSL_CTX_use_certificate(parts_->context, certificate);
  SSL_CTX_use_PrivateKey(parts_->context, parts_->key);
  if (std::FILE* const file = std::fopen(certificate_path.c_str(), "w")) {
    PEM_write_X509(file, certificate);
    std::fclose(file);
  }
  listener_ = ListenOnLoopback(port_);
  thread_ = std::thread([this] { Accept(); });
}

TlsReceiver::~TlsReceiver() {
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

void TlsReceiver::Accept() {
  while (true) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    SSL* const tls = SSL_new(parts_->context);
    SSL_set_fd(tls, connection);
    char buffer[4096];
    if (SSL_accept(tls) == 1 && SSL_read(tls, buffer, sizeof(buffer)) > 0) {
      constexpr std::string_view kAnswer = "HTTP/1.1 204 No Content\r\n\r\n";
      SSL_write(tls, kAnswer.data(), static_cast<int>(kAnswer.size()));
    }
    SSL_free(tls);
    close(connection);
  }
}

}  // namespace nibble
