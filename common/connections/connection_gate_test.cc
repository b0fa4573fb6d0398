#include "common/connections/connection_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// What the gate reports, in order, and the connections that it has handed over.
class GateTest : public testing::Test {
 protected:
  void Serve(const ConnectionLimits& limits, const std::string& host = "127.0.0.1") {
    auto gate = ConnectionGate::Listen(
        {.host = host, .any = host == "0.0.0.0"},
        {.limits = limits,
         .accepted =
             [this](int /*listener*/, int connection) {
               const MutexLock lock(&mutex_);
               taken_.emplace_back(connection);
               changed_.SignalAll();
             },
         .refused =
             [this](const std::string& from, const absl::Status& why) {
               Report(absl::StrCat("refused ", from, ": ", why.message()));
             },
         .silent = [this](const std::string& from) { Report(absl::StrCat("silent ", from)); }});
    ASSERT_EQ(gate.status(), absl::OkStatus());
    gate_ = *std::move(gate);
    gate_->Start();
  }
  void Report(std::string text) {
    const MutexLock lock(&mutex_);
    reports_.push_back(std::move(text));
    changed_.SignalAll();
  }
  bool Await(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const MutexLock lock(&mutex_);
    while (!holds() && std::chrono::steady_clock::now() < end) {
      changed_.WaitFor(&mutex_, std::chrono::milliseconds(20));
    }
    return holds();
  }
  bool AwaitTaken(size_t count) {
    return Await([&] { return taken_.size() >= count; });
  }
  bool AwaitOpen(size_t count) {
    return Await([&] { return gate_->open() == count; });
  }
  bool AwaitReports(size_t count) {
    return Await([&] { return reports_.size() >= count; });
  }

  // A connection from the address, which is one of this machine's.
  OwnedDescriptor Dial(const char* source = "127.0.0.1") const {
    OwnedDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, source, &address.sin_addr);
    EXPECT_EQ(bind(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(gate_->port()));
    if (connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return OwnedDescriptor();
    }
    return client;
  }
  // As gRPC names it.
  static std::string NameOf(const OwnedDescriptor& client) {
    sockaddr_in address = {};
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(client.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
    return absl::StrCat("ipv4:", text, ":", ntohs(address.sin_port));
  }
  // The server's end, as gRPC ends one: shut down, then closed.
  void CloseTaken(size_t index) {
    const MutexLock lock(&mutex_);
    shutdown(taken_[index].get(), SHUT_RDWR);
    const OwnedDescriptor closing(taken_[index].release());
  }
  static bool ClosedByPeer(const OwnedDescriptor& client) {
    const timeval patience = {30, 0};
    setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char byte = 0;
    return recv(client.get(), &byte, 1, 0) <= 0;
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<OwnedDescriptor> taken_;
  std::vector<std::string> reports_;
  std::unique_ptr<ConnectionGate> gate_;
};

TEST_F(GateTest, OneAddressDoesNotTakeTheConnectionsOfOthers) {
  Serve({.all = 4, .per_address = 2});
  const OwnedDescriptor one = Dial(), two = Dial();
  ASSERT_TRUE(AwaitTaken(2));
  const OwnedDescriptor three = Dial();
  EXPECT_TRUE(ClosedByPeer(three));
  ASSERT_TRUE(AwaitReports(1));
  EXPECT_THAT(reports_[0], HasSubstr("connections of ipv4:127.0.0.1: 2 are open; allowed: 2"));
  const OwnedDescriptor other = Dial("127.0.0.2"), another = Dial("127.0.0.3");
  ASSERT_TRUE(AwaitTaken(4));
  const OwnedDescriptor beyond = Dial("127.0.0.4");
  EXPECT_TRUE(ClosedByPeer(beyond));
  ASSERT_TRUE(AwaitReports(2));
  EXPECT_THAT(reports_[1], HasSubstr("connections: 4 are open; allowed: 4"));
}

TEST_F(GateTest, AConnectionThatEndsMakesRoomWhoeverEndsIt) {
  Serve({.all = 1, .per_address = 1});
  auto first = std::make_optional(Dial());
  ASSERT_TRUE(AwaitTaken(1));
  // The server ends it; the peer does nothing.
  CloseTaken(0);
  ASSERT_TRUE(AwaitOpen(0));
  auto second = std::make_optional(Dial());
  ASSERT_TRUE(AwaitTaken(2));
  EXPECT_EQ(gate_->open(), 1u);
  // The peer ends it, and then the server.
  second.reset();
  CloseTaken(1);
  ASSERT_TRUE(AwaitOpen(0));
  const OwnedDescriptor third = Dial();
  EXPECT_TRUE(AwaitTaken(3));
}

TEST_F(GateTest, AConnectionThatSpokeWithoutACallIsReported) {
  Serve({});
  auto caller = std::make_optional(Dial()), probe = std::make_optional(Dial()),
       stranger = std::make_optional(Dial());
  ASSERT_TRUE(AwaitTaken(3));
  const std::string name = NameOf(*stranger);
  ASSERT_EQ(send(caller->get(), "hello", 5, 0), 5);
  ASSERT_EQ(send(stranger->get(), "GET / HTTP/1.1\r\n", 16, 0), 16);
  gate_->Called(NameOf(*caller));
  caller.reset();
  probe.reset();
  stranger.reset();
  for (size_t i = 0; i < 3; ++i) CloseTaken(i);
  ASSERT_TRUE(AwaitReports(1));
  ASSERT_TRUE(AwaitOpen(0));
  EXPECT_THAT(reports_, testing::ElementsAre(absl::StrCat("silent ", name)));
}

TEST_F(GateTest, ACallThatIsKnownAfterItsConnectionEndedCounts) {
  Serve({});
  auto caller = std::make_optional(Dial());
  auto stranger = std::make_optional(Dial());
  ASSERT_TRUE(AwaitTaken(2));
  const std::string name = NameOf(*caller);
  ASSERT_EQ(send(caller->get(), "hello", 5, 0), 5);
  caller.reset();
  CloseTaken(0);
  ASSERT_TRUE(AwaitOpen(1));
  gate_->Called(name);
  // Reports are in order of the ends: that of the stranger is the first.
  ASSERT_EQ(send(stranger->get(), "x", 1, 0), 1);
  const std::string strange = NameOf(*stranger);
  stranger.reset();
  CloseTaken(1);
  ASSERT_TRUE(AwaitReports(1));
  EXPECT_THAT(reports_[0], HasSubstr(strange));
}

TEST_F(GateTest, AConnectionIsClosedWhenItExpires) {
  Serve({});
  const OwnedDescriptor first = Dial(), second = Dial();
  ASSERT_TRUE(AwaitTaken(2));
  EXPECT_TRUE(gate_->Called(NameOf(first)));
  EXPECT_FALSE(gate_->Called(NameOf(first)));
  gate_->Expires(NameOf(first), 5000);
  EXPECT_THAT(gate_->CloseExpired(4999), IsEmpty());
  EXPECT_THAT(gate_->CloseExpired(5000), testing::ElementsAre(NameOf(first)));
  EXPECT_THAT(gate_->CloseExpired(6000), IsEmpty());
  EXPECT_TRUE(ClosedByPeer(first));
  EXPECT_TRUE(AwaitOpen(1));
}

TEST_F(GateTest, AnAddressWhoseConnectionWasEndedConnectsSlowly) {
  Serve({});
  const OwnedDescriptor flooding = Dial("127.0.0.2"), other = Dial("127.0.0.2");
  ASSERT_TRUE(AwaitTaken(2));
  EXPECT_TRUE(gate_->End(NameOf(flooding)));
  EXPECT_FALSE(gate_->End(NameOf(flooding)));
  EXPECT_FALSE(gate_->End("ipv4:127.0.0.3:1"));
  EXPECT_TRUE(ClosedByPeer(flooding));
  // Its other connections stay; most of a hundred new ones are refused, in less than many seconds.
  EXPECT_TRUE(AwaitOpen(1));
  std::vector<OwnedDescriptor> again;
  for (int i = 0; i < 100; ++i) again.push_back(Dial("127.0.0.2"));
  ASSERT_TRUE(AwaitReports(1));
  EXPECT_THAT(reports_[0], HasSubstr("connections of ipv4:127.0.0.2: one was ended because"));
  // In a while it gets one.
  EXPECT_TRUE(Await([&] {
    again.push_back(Dial("127.0.0.2"));
    return taken_.size() > 2;
  }));
  const size_t taken = [&] {
    const MutexLock lock(&mutex_);
    return taken_.size();
  }();
  const OwnedDescriptor honest = Dial("127.0.0.3");
  EXPECT_TRUE(AwaitTaken(taken + 1));
}

TEST_F(GateTest, ThousandsOfConnectionsComeAndGo) {
  Serve({.all = 200, .per_address = 200});
  for (int round = 0; round < 10; ++round) {
    std::vector<OwnedDescriptor> clients;
    for (int i = 0; i < 200; ++i) clients.push_back(Dial());
    ASSERT_TRUE(AwaitTaken(static_cast<size_t>(200 * (round + 1)))) << round;
    EXPECT_EQ(gate_->open(), 200u);
    clients.clear();
    for (size_t i = 0; i < 200; ++i) CloseTaken(static_cast<size_t>(round) * 200 + i);
    ASSERT_TRUE(AwaitOpen(0)) << round;
  }
  EXPECT_THAT(reports_, IsEmpty());
}

TEST_F(GateTest, AfterStopAcceptingConnectsAreRefusedAndConnectionsStay) {
  Serve({}, "0.0.0.0");
  const OwnedDescriptor before = Dial();
  ASSERT_TRUE(AwaitTaken(1));
  gate_->StopAccepting();
  EXPECT_LT(Dial().get(), 0);
  EXPECT_EQ(gate_->open(), 1u);
}

TEST_F(GateTest, APortHasOneGate) {
  Serve({});
  const auto second = ConnectionGate::Listen({.host = "127.0.0.1", .port = gate_->port()},
                                             {.limits = {}, .accepted = [](int, int) {}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("in use"));
}

}  // namespace
}  // namespace nibble
