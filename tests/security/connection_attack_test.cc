// Peers that only connect: strangers whose handshakes fail, and crowds of idle connections.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/descriptor.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

// A connection from an address of this machine; closed: it was refused.
OwnedDescriptor DialFrom(const char* source, int port) {
  OwnedDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, source, &address.sin_addr);
  EXPECT_EQ(bind(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return OwnedDescriptor();
  }
  return client;
}

// Whether the peer closes the connection within the deadline of a handshake.
bool IsClosed(const OwnedDescriptor& client) {
  const timeval patience = {60, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char bytes[256];
  ssize_t got = 0;
  while ((got = recv(client.get(), bytes, sizeof bytes, 0)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

grpc::Status ListOver(const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
  v1::ListJobsResponse listed;
  return v1::Coordinator::NewStub(channel)->ListJobs(CallWith(token).get(), {}, &listed);
}

// Lines about connections of the address, of this code.
int ConnectionLines(const SecureCoordinator& coordinator, const std::string& address,
                    const std::string& code) {
  int lines = 0;
  for (const auto& entry : coordinator.Audit()) {
    lines += entry.value("call", "") == "connection" && entry.value("outcome", "") == "refused" &&
             entry.value("code", "") == code &&
             absl::StartsWith(entry.value("from", ""), absl::StrCat("ipv4:", address, ":"));
  }
  return lines;
}

TEST(ConnectionAttackTest, FailedHandshakesAreAudited) {
  SecureCoordinator coordinator;
  const auto failed = [&](const std::string& address) {
    return ConnectionLines(coordinator, address, "UNAUTHENTICATED");
  };
  // Neither a caller with a call, nor a probe of the port, is a failure.
  EXPECT_TRUE(ListOver(coordinator.Connect(), coordinator.Bootstrap()).ok());
  (void)DialFrom("127.0.0.9", coordinator.process().port());
  // Bytes that are no TLS.
  {
    const OwnedDescriptor plain = DialFrom("127.0.0.5", coordinator.process().port());
    ASSERT_EQ(send(plain.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    EXPECT_TRUE(IsClosed(plain));
  }
  EXPECT_TRUE(Eventually([&] { return failed("127.0.0.5") == 1; }));
  EXPECT_EQ(failed("127.0.0.1"), 0);
  // A certificate of another authority, and an expired one.
  const TestAuthority other(coordinator.directory(), "other");
  TlsFiles foreign = other.Issue("eve", {PeerKind::kClient, "cli"});
  foreign.authority = coordinator.client_files().authority;
  EXPECT_EQ(ListOver(coordinator.Connect(foreign), coordinator.Bootstrap()).error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Eventually([&] { return failed("127.0.0.1") >= 1; }));
  const int before = failed("127.0.0.1");
  const TlsFiles late = coordinator.authority().Issue("late", {PeerKind::kClient, "late"}, -60);
  EXPECT_EQ(ListOver(coordinator.Connect(late), coordinator.Bootstrap()).error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Eventually([&] { return failed("127.0.0.1") > before; }));
  EXPECT_EQ(failed("127.0.0.9"), 0);
}

TEST(ConnectionAttackTest, AConnectionEndsWhenItsCertificateExpires) {
  SecureCoordinator coordinator;
  const auto short_lived =
      coordinator.Connect(coordinator.authority().Issue("short", {PeerKind::kClient, "short"}, 5));
  const auto context = CallWith(coordinator.Bootstrap());
  const auto watch = v1::Coordinator::NewStub(short_lived)->WatchJobs(context.get(), {});
  v1::WatchJobsResponse changed;
  ASSERT_TRUE(watch->Read(&changed));
  while (watch->Read(&changed)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Eventually([&] {
    for (const auto& entry : coordinator.Audit()) {
      if (absl::StrContains(entry.value("reason", ""), "certificate of the connection"))
        return true;
    }
    return false;
  }));
  // Nor does it get another connection with it; with a new one it does.
  EXPECT_EQ(ListOver(short_lived, coordinator.Bootstrap()).error_code(), StatusCode::UNAVAILABLE);
  coordinator.authority().Issue("short", {PeerKind::kClient, "short"});
  EXPECT_TRUE(Eventually([&] { return ListOver(short_lived, coordinator.Bootstrap()).ok(); }));
}

TEST(ConnectionAttackTest, AnAddressThatTakesAllItsConnectionsLeavesThoseOfOthers) {
  SecureCoordinator coordinator(3600, {"--max-connections-per-address=100"});
  std::vector<OwnedDescriptor> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(DialFrom("127.0.0.2", coordinator.process().port()));
  }
  // Handshakes that do not begin end after ten seconds, so that later ones may have found room.
  EXPECT_TRUE(Eventually(
      [&] { return ConnectionLines(coordinator, "127.0.0.2", "RESOURCE_EXHAUSTED") >= 500; }));
  const grpc::Status honest = ListOver(coordinator.Connect(), coordinator.Bootstrap());
  EXPECT_TRUE(honest.ok()) << honest.error_message();
  EXPECT_TRUE(IsClosed(crowd.back()));
}

TEST(ConnectionAttackTest, AThousandIdleConnectionsKeepNobodyOutAndCostBoundedMemory) {
  SecureCoordinator coordinator;
  const std::string token = coordinator.Bootstrap();
  EXPECT_TRUE(ListOver(coordinator.Connect(), token).ok());
  const int64_t before = coordinator.process().RssBytes();
  std::vector<std::shared_ptr<grpc::Channel>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(coordinator.Connect());
    (void)crowd.back()->GetState(/*try_to_connect=*/true);
  }
  for (const auto& channel : crowd) {
    ASSERT_TRUE(
        channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60)));
  }
  EXPECT_TRUE(ListOver(coordinator.Connect(), token).ok());
  const int64_t grown = coordinator.process().RssBytes() - before;
  RecordProperty("bytes_per_connection", std::to_string(grown / 1000));
  EXPECT_LT(grown, int64_t{200} << 20);
  // All of them are still served.
  for (size_t i = 0; i < crowd.size(); i += 100) {
    EXPECT_TRUE(ListOver(crowd[i], token).ok()) << i;
  }
  crowd.clear();
  EXPECT_TRUE(ListOver(coordinator.Connect(), token).ok());
}

}  // namespace
}  // namespace nibble
