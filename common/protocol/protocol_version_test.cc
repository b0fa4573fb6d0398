#include "common/protocol/protocol_version.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(ProtocolVersion, DaemonsOneVersionApartAreAcceptedEitherWay) {
  for (const int32_t daemon : {4, 5, 6}) {
    EXPECT_EQ(CheckProtocol("w1", "0.5.0", daemon, 5), absl::OkStatus()) << daemon;
  }
  EXPECT_EQ(CheckProtocol("w1", "0.1.0", kProtocolVersion), absl::OkStatus());
}

TEST(ProtocolVersion, ADaemonThatNamesNoneSpeaksTheFirst) {
  EXPECT_EQ(CheckProtocol("w1", "", 0, 1), absl::OkStatus());
  EXPECT_EQ(CheckProtocol("w1", "", 0, 2), absl::OkStatus());
  const absl::Status refused = CheckProtocol("w1", "", 0, 3);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("worker w1, version unknown, speaks protocol 1; "));
}

TEST(ProtocolVersion, ARefusalNamesBothVersionsAndWhichToUpgrade) {
  const absl::Status older = CheckProtocol("w7", "0.3.0", 3, 5);
  EXPECT_EQ(older.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(older.message()),
              HasSubstr("worker w7, version 0.3.0, speaks protocol 3; this coordinator, version "));
  EXPECT_THAT(std::string(older.message()),
              HasSubstr("speaks 5; allowed: 4 to 6; upgrade the worker first"));
  EXPECT_THAT(std::string(CheckProtocol("w7", "0.9.0", 7, 5).message()),
              HasSubstr("upgrade the coordinator first"));
  EXPECT_FALSE(CheckProtocol("w7", "", -1, 5).ok());
  EXPECT_FALSE(CheckProtocol("w7", "", 0x7FFFFFFF, 5).ok());
}

}  // namespace
}  // namespace nibble
