#include "worker/agent/collective_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;

TEST(CollectiveAddressTest, AnInterfaceIsFoundByItsNameAndByItsAddress) {
  for (const char* text : {"lo", "127.0.0.1"}) {
    const auto found = FindCollectiveAddress(text);
    ASSERT_EQ(found.status(), absl::OkStatus());
    EXPECT_EQ(found->address, "127.0.0.1");
    EXPECT_EQ(found->interface, "lo");
  }
}

TEST(CollectiveAddressTest, WhatThisMachineDoesNotHaveIsRefusedWithWhatItHas) {
  for (const char* text : {"", "lo7", "203.0.113.7", "localhost", "0.0.0.0"}) {
    const absl::Status refused = FindCollectiveAddress(text).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("lo (127.0.0.1)"));
  }
}

}  // namespace
}  // namespace nibble
