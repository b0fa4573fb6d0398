#include "tests/cluster/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr int kPatienceMs = 30'000;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool Readable(int file, int patience_ms) {
  pollfd one = {.fd = file, .events = POLLIN};
  return poll(&one, 1, patience_ms) > 0;
}

std::string Receive(int file) {
  char bytes[256];
  if (!Readable(file, kPatienceMs)) return "nothing received";
  const ssize_t got = recv(file, bytes, sizeof bytes, 0);
  return got <= 0 ? "broken" : std::string(bytes, static_cast<size_t>(got));
}

class TcpProxyTest : public testing::Test {
 protected:
  TcpProxyTest() {
    server_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = Loopback(0);
    EXPECT_EQ(bind(server_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(server_, 4), 0);
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(server_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    proxy_ = std::make_unique<TcpProxy>(ntohs(address.sin_port));
  }
  ~TcpProxyTest() override {
    proxy_.reset();
    for (const int file : {client_, taken_, server_}) {
      if (file >= 0) close(file);
    }
  }
  void Connect() {
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(proxy_->port());
    ASSERT_EQ(connect(client_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_TRUE(Readable(server_, kPatienceMs));
    taken_ = accept(server_, nullptr, nullptr);
    ASSERT_GE(taken_, 0);
  }
  static void Send(int file, const std::string& text) {
    ASSERT_EQ(send(file, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // An HTTP/2 frame of a stream.
  static std::string Frame(char type, char flags, const std::string& payload) {
    return std::string{0, 0, static_cast<char>(payload.size()), type, flags, 0, 0, 0, 1} + payload;
  }

  int server_ = -1, client_ = -1, taken_ = -1;
  std::unique_ptr<TcpProxy> proxy_;
};

TEST_F(TcpProxyTest, BytesPassInBothDirections) {
  Connect();
  Send(client_, "there");
  EXPECT_EQ(Receive(taken_), "there");
  Send(taken_, "back");
  EXPECT_EQ(Receive(client_), "back");
}

TEST_F(TcpProxyTest, StalledBytesPassAfterwards) {
  Connect();
  proxy_->Set(TcpProxy::Mode::kStall);
  Send(client_, "there");
  EXPECT_FALSE(Readable(taken_, 50));
  proxy_->Set(TcpProxy::Mode::kPass);
  EXPECT_EQ(Receive(taken_), "there");
}

TEST_F(TcpProxyTest, ADroppedReplyIsCountedAndNeverArrives) {
  Connect();
  // One complete frame before, and half of another.
  const std::string data = Frame(0, 0, "12345");
  Send(taken_, data + Frame(1, 1, "end").substr(0, 4));
  EXPECT_EQ(Receive(client_).substr(0, data.size()), data);
  proxy_->Set(TcpProxy::Mode::kMute);
  Send(client_, "there");
  EXPECT_EQ(Receive(taken_), "there");
  EXPECT_FALSE(proxy_->AwaitLost(1, std::chrono::milliseconds(50)));
  Send(taken_, Frame(1, 1, "end").substr(4));
  EXPECT_TRUE(proxy_->AwaitLost(1, std::chrono::milliseconds(kPatienceMs)));
  EXPECT_FALSE(Readable(client_, 50));
}

TEST_F(TcpProxyTest, ACutClosesConnectionsAndRefusesNewOnes) {
  Connect();
  proxy_->Set(TcpProxy::Mode::kCut);
  EXPECT_EQ(Receive(client_), "broken");
  EXPECT_EQ(Receive(taken_), "broken");
  close(client_);
  client_ = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(proxy_->port());
  ASSERT_EQ(connect(client_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(Receive(client_), "broken");
  close(client_);
  close(taken_);
  proxy_->Set(TcpProxy::Mode::kPass);
  Connect();
  Send(client_, "again");
  EXPECT_EQ(Receive(taken_), "again");
}

}  // namespace
}  // namespace nibble
