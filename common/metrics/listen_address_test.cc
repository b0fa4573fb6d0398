#include "common/metrics/listen_address.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(ListenAddressTest, HostsAndPortsAreToldApart) {
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

TEST(ListenAddressTest, WhatIsNoAddressIsRefusedWithItsFieldAndValue) {
  for (const char* const bad :
       {"", "x", ":1", "h:", "h:-1", "h:65536", "h:1x", "::1:5", "[::1:5"}) {
    const absl::Status status = ParseListenAddress("http", bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.message().substr(0, 7), "http: '");
  }
}

TEST(ListenAddressTest, OffLoopbackIsRefusedUnlessItIsMeant) {
  EXPECT_EQ(CheckListenAddress("http", "localhost:1", false), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckListenAddress("http", "0.0.0.0:1", false)));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckListenAddress("http", "127.example.org:1", false)));
  EXPECT_EQ(CheckListenAddress("http", "0.0.0.0:1", true), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
