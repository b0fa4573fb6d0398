#include "server/service/worker_addresses.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kFar[] = "ipv4:10.0.0.7";
constexpr char kHere[] = "ipv4:127.0.0.1";

v1::WorkerIdentity At(const std::string& address) {
  v1::WorkerIdentity identity;
  identity.set_address(address);
  return identity;
}

ListenAddress Listening(const std::string& text) { return *ParseListenAddress("listen", text); }

TEST(WorkerAddressesTest, LoopbackIsForWorkersOfThisMachine) {
  const WorkerAddresses addresses({});
  for (const char* const local : {kHere, "ipv4:127.3.0.1", "ipv6:%5B::1%5D", "ipv6:[::1]",
                                  "ipv6:%5B::ffff:127.0.0.1%5D", "unix:"}) {
    EXPECT_EQ(addresses.Check(At("[::1]:7000"), local), absl::OkStatus()) << local;
  }
  for (const char* const far : {kFar, "ipv4:12.7.0.1", "ipv6:%5B2001:db8::1%5D"}) {
    for (const char* const loopback :
         {"[::1]:7000", "127.0.0.1:7000", "localhost:7000", "LocalHost.:7000", "a.localhost:7000",
          "[::ffff:127.0.0.1]:7000"}) {
      const absl::Status status = addresses.Check(At(loopback), far);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << far << " " << loopback;
      EXPECT_THAT(std::string(status.message()), HasSubstr("--address")) << far;
    }
    v1::WorkerIdentity reachable = At("w1:7000");
    EXPECT_EQ(addresses.Check(reachable, far), absl::OkStatus());
    reachable.set_http_address("localhost:7702");
    EXPECT_THAT(std::string(addresses.Check(reachable, far).message()),
                StartsWith("identity.http_address: "));
  }
}

TEST(WorkerAddressesTest, LinkLocalAddressesAreForWorkersOnSuchANetwork) {
  const WorkerAddresses addresses({});
  for (const char* const metadata :
       {"169.254.169.254:80", "[fe80::1]:7000", "[::ffff:169.254.169.254]:80"}) {
    const absl::Status status = addresses.Check(At(metadata), kFar);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << metadata;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is link-local, and the worker connects"));
    EXPECT_FALSE(addresses.Check(At(metadata), kHere).ok()) << metadata;
  }
  EXPECT_EQ(addresses.Check(At("169.254.3.4:7000"), "ipv4:169.254.3.4"), absl::OkStatus());
  EXPECT_EQ(addresses.Check(At("[fe80::1]:7000"), "ipv6:%5Bfe80::1%25eth0%5D"), absl::OkStatus());
}

TEST(WorkerAddressesTest, MulticastIsNoAddressOfAWorker) {
  const WorkerAddresses addresses({});
  for (const char* const many :
       {"224.0.0.1:7000", "239.1.2.3:7000", "255.255.255.255:7000", "[ff02::1]:7000"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(addresses.Check(At(many), kHere))) << many;
  }
}

TEST(WorkerAddressesTest, TheCoordinatorIsNoWorker) {
  const WorkerAddresses open({Listening("0.0.0.0:7700"), Listening("127.0.0.1:7701")});
  for (const char* const own :
       {"127.0.0.1:7700", "localhost:7700", "[::1]:7700", "127.0.0.1:7701"}) {
    const absl::Status status = open.Check(At(own), kHere);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << own;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is the coordinator's")) << own;
  }
  EXPECT_EQ(open.Check(At("127.0.0.1:7710"), kHere), absl::OkStatus());
  EXPECT_EQ(open.Check(At("10.0.0.7:7700"), kFar), absl::OkStatus());
  const WorkerAddresses one({Listening("10.0.0.1:7700")});
  EXPECT_FALSE(one.Check(At("10.0.0.1:7700"), kFar).ok());
  EXPECT_EQ(one.Check(At("10.0.0.1:7710"), kFar), absl::OkStatus());
  // A worker of this machine, which the coordinator's socket does not cover.
  EXPECT_EQ(one.Check(At("127.0.0.1:7700"), kHere), absl::OkStatus());
  v1::WorkerIdentity identity = At("10.0.0.7:7710");
  identity.set_http_address("10.0.0.1:7700");
  EXPECT_THAT(std::string(one.Check(identity, kFar).message()),
              StartsWith("identity.http_address: '10.0.0.1:7700' is the coordinator's"));
}

}  // namespace
}  // namespace nibble
