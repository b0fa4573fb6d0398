#include "worker/trainer/comm/rendezvous.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/trainer/comm/rank_processes.h"

namespace nibble {
namespace {

Deadline Later() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

TEST(RendezvousTest, AtMostThreeRanksAreNamed) {
  EXPECT_EQ(NameRanks({2}), "rank 2");
  EXPECT_EQ(NameRanks({1, 2, 3}), "ranks 1, 2, 3");
  EXPECT_EQ(NameRanks({1, 2, 3, 4, 9}), "ranks 1, 2, 3 and 2 more");
}

TEST(RendezvousTest, RanksMeetOverEitherKindOfStore) {
  constexpr int kWorld = 3;
  const RendezvousDirectory directory;
  const ReservedPort port;
  for (const std::string& address : {directory.address(), "tcp:" + port.host_port()}) {
    std::vector<std::thread> ranks;
    std::vector<absl::StatusOr<Rendezvous>> opened;
    std::vector<absl::Status> met(kWorld);
    for (int rank = 0; rank < kWorld; ++rank) opened.emplace_back(absl::UnknownError(""));
    for (int rank = 0; rank < kWorld; ++rank) {
      ranks.emplace_back([&, rank] {
        opened[rank] = Rendezvous::Open(address, rank, Later());
        met[rank] = opened[rank].ok() ? opened[rank]->Meet("1", rank, kWorld, Later())
                                      : opened[rank].status();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const absl::Status& status : met) EXPECT_TRUE(status.ok()) << address << ": " << status;
  }
}

TEST(RendezvousTest, RanksMeetAtAStoreThatNoneOfThemServes) {
  auto server = TcpStoreServer::Start("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string address = "served:127.0.0.1:" + std::to_string((*server)->port());
  std::vector<std::thread> ranks;
  std::vector<absl::Status> met(2);
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      absl::StatusOr<Rendezvous> opened = Rendezvous::Open(address, rank, Later());
      met[rank] = opened.ok() ? opened->Meet("1", rank, 2, Later()) : opened.status();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& status : met) EXPECT_TRUE(status.ok()) << status;
}

TEST(RendezvousTest, MissingRanksAreNamedAtTheDeadline) {
  const RendezvousDirectory directory;
  absl::StatusOr<Rendezvous> rendezvous = Rendezvous::Open(directory.address(), 1, Later());
  ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
  const absl::Status status = rendezvous->Meet("1", 1, 3, Deadline::min());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "rendezvous of attempt \"1\": ranks 0, 2 of 3 have not come");
}

}  // namespace
}  // namespace nibble
