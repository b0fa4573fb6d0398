#include "common/listen_address.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(ListenAddressTest, HostAndPortAreParsed) {
  const auto four = ParseListenAddress("http", "127.0.0.1:7701");
  ASSERT_EQ(four.status(), absl::OkStatus());
  EXPECT_EQ(four->host, "127.0.0.1");
  EXPECT_EQ(four->port, 7701);
  EXPECT_TRUE(four->loopback);
  const auto six = ParseListenAddress("http", "[::]:0");
  ASSERT_EQ(six.status(), absl::OkStatus());
  EXPECT_EQ(six->host, "::");
  EXPECT_TRUE(six->any);
  EXPECT_FALSE(six->loopback);
  EXPECT_EQ(six->ToString(), "[::]:0");
}

TEST(ListenAddressTest, AnInvalidAddressIsRefusedWithItsFieldAndValue) {
  for (const char* const bad :
       {"", "x", ":1", "h:", "h:-1", "h:65536", "h:1x", "::1:5", "[::1:5"}) {
    const absl::Status status = ParseListenAddress("http", bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.message().substr(0, 7), "http: '");
  }
}

TEST(ListenAddressTest, AnAddressOffLoopbackIsRefusedUnlessInsecure) {
  EXPECT_EQ(CheckListenAddress("http", "localhost:1", false), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckListenAddress("http", "0.0.0.0:1", false)));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckListenAddress("http", "127.example.org:1", false)));
  EXPECT_EQ(CheckListenAddress("http", "0.0.0.0:1", true), absl::OkStatus());
}

TEST(ListenAddressTest, ANamedAddressIsOneHostAndOnePort) {
  for (const char* const good : {"w1:7000", "node-7.rack_a.example.org:65535", "10.0.0.7:1",
                                 "[2001:db8::1]:7000", "[::ffff:10.0.0.7]:7000"}) {
    const auto named = ParseNamedAddress("identity.address", good);
    ASSERT_EQ(named.status(), absl::OkStatus()) << good;
    EXPECT_FALSE(named->loopback) << good;
  }
  for (const char* const local :
       {"localhost:1", "127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1"}) {
    const auto named = ParseNamedAddress("identity.address", local);
    ASSERT_EQ(named.status(), absl::OkStatus()) << local;
    EXPECT_TRUE(named->loopback) << local;
  }
  for (const char* const bad : {"",
                                "w1",
                                "w1:0",
                                "w1:65536",
                                "w1:-1",
                                ":7000",
                                "http://w1:7000",
                                "http//w1:7000",
                                "dns:///w1:7000",
                                "unix:/run/x:1",
                                "w1:7000/path",
                                "user@w1:7000",
                                "w 1:7000",
                                "w1\n:7000",
                                "-w1:7000",
                                "0.0.0.0:7000",
                                "0:7000",
                                "0x7f.1:7000",
                                "127.1:7000",
                                "2130706433:7000",
                                "0.1.2.3:7000",
                                "[::]:7000",
                                "[::ffff:0.0.0.0]:7000",
                                "[fe80::1%eth0]:7000",
                                "[w1]x:7000"}) {
    const absl::Status status = ParseNamedAddress("identity.address", bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.message().substr(0, 18), "identity.address: ") << bad;
  }
}

}  // namespace
}  // namespace nibble
