#include "worker/agent/gang_preparation.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "worker/agent/peer_server.h"

namespace nibble {
namespace {

class MeetingPointsTest : public testing::Test {
 protected:
  MeetingPointsTest() {
    std::vector<PeerService> services;
    services.push_back(MakeMeetingService(points_));
    auto server = PeerServer::Start("127.0.0.1:0", {}, std::move(services));
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // The gang as worker `member` receives it, with two ranks per worker.
  v1::DesiredGang Gang(int member, int members = 2, int64_t attempt = 3) const {
    v1::DesiredGang gang;
    gang.set_job("run-1");
    gang.set_attempt(attempt);
    gang.set_first_rank(2 * member);
    for (int i = 0; i < members; ++i) {
      v1::GangMember& one = *gang.add_members();
      one.set_address(server_->address());
      one.set_first_rank(2 * i);
    }
    return gang;
  }

  MeetingPoints points_{"127.0.0.1"};
  std::unique_ptr<PeerServer> server_;
};

TEST_F(MeetingPointsTest, WorkersAskUntilTheAttemptIsOpenAndBeginTogether) {
  Cancellation none;
  absl::Status first, second;
  std::string asked;
  std::thread other([&] {
    const auto address = AskForMeeting(Gang(1), {}, none);
    second = address.status();
    if (!address.ok()) return;
    asked = *address;
    Cancellation own;
    second = AwaitMembers(*address, Gang(1), own);
  });
  const auto address = points_.Open("run-1", 3);
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(absl::StartsWith(*address, "served:127.0.0.1:")) << *address;
  Cancellation own;
  first = AwaitMembers(*address, Gang(0), own);
  other.join();
  EXPECT_TRUE(first.ok()) << first;
  EXPECT_TRUE(second.ok()) << second;
  EXPECT_EQ(asked, *address);
}

TEST_F(MeetingPointsTest, AnAttemptThatIsOverIsRefused) {
  ASSERT_TRUE(points_.Open("run-1", 4).ok());
  Cancellation none;
  const auto asked = AskForMeeting(Gang(1), {}, none);
  EXPECT_EQ(asked.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(std::string(asked.status().message()),
            "attempt: 3 of run-1 is over; the latest known here is 4");
  EXPECT_EQ(points_.Open("run-1", 3).status().code(), absl::StatusCode::kAborted);
}

TEST_F(MeetingPointsTest, WaitingForAMissingMemberCanBeCancelled) {
  const auto address = points_.Open("run-1", 3);
  ASSERT_TRUE(address.ok()) << address.status();
  Cancellation cancellation;
  absl::Status status;
  std::thread waits([&] { status = AwaitMembers(*address, Gang(0), cancellation); });
  cancellation.Cancel();
  waits.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  Cancellation other;
  absl::Status asked;
  std::thread asks([&] { asked = AskForMeeting(Gang(1, 2, 9), {}, other).status(); });
  other.Cancel();
  asks.join();
  EXPECT_EQ(asked.code(), absl::StatusCode::kCancelled) << asked;
}

TEST_F(MeetingPointsTest, AnAddressThatIsNoRendezvousIsRefused) {
  for (const char* const address : {"", "x", "127.0.0.1:1"}) {
    Cancellation none;
    EXPECT_EQ(AwaitMembers(address, Gang(0), none).code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST_F(MeetingPointsTest, ARequestOutOfBoundsIsRefused) {
  Cancellation none;
  EXPECT_EQ(AskForMeeting(Gang(1, 2, 0), {}, none).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
