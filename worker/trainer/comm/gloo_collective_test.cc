#include "worker/trainer/comm/gloo_collective.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/comm/rank_processes_testing.h"

namespace nibble {
namespace {

constexpr int kWorlds[] = {1, 2, 4};

std::unique_ptr<Collective> Join(const RendezvousProcess& rendezvous, int rank, int world) {
  absl::StatusOr<std::unique_ptr<Collective>> collective =
      CreateGloo({.rank = rank, .world = world, .rendezvous = rendezvous.address()});
  EXPECT_TRUE(collective.ok()) << collective.status();
  return collective.ok() ? *std::move(collective) : nullptr;
}

// Runs body(collective) on every rank of every world.
template <class Body>
void InEveryWorld(Body body) {
  for (const int world : kWorlds) {
    const RendezvousProcess rendezvous;
    ExpectRanks(world, [&](int rank) {
      const std::unique_ptr<Collective> collective = Join(rendezvous, rank, world);
      if (collective == nullptr) return;
      EXPECT_EQ(collective->rank(), rank);
      EXPECT_EQ(collective->world(), world);
      body(*collective);
    });
  }
}

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Values of either sign, with magnitudes so far apart that the order of a sum shows in its bits.
float Value(int rank, int64_t index) {
  const uint64_t bits = Mix(static_cast<uint64_t>(rank) << 40 ^ (index + 1));
  const float fraction = static_cast<float>(bits & 0xffffff) / 0x1p24f - 0.5f;
  return fraction * static_cast<float>(1 << (bits >> 32 & 15));
}

char Byte(int rank, int64_t index) {
  return static_cast<char>(Mix(static_cast<uint64_t>(rank) << 40 ^ (index + 1)));
}

// ((x0 + x1) + x2) + …
float OrderedSum(int world, int64_t index) {
  float sum = Value(0, index);
  for (int r = 1; r < world; ++r) sum += Value(r, index);
  return sum;
}

template <class T>
int64_t BitDifferences(const std::vector<T>& a, const std::vector<T>& b) {
  int64_t differences = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    differences += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  }
  return differences;
}

void CheckGather(Collective& group, int64_t bytes, bool in_place) {
  std::vector<char> expected, out(group.world() * bytes, 'x');
  for (int r = 0; r < group.world(); ++r) {
    for (int64_t i = 0; i < bytes; ++i) expected.push_back(Byte(r, i));
  }
  const std::vector<char> mine(expected.begin() + group.rank() * bytes,
                               expected.begin() + (group.rank() + 1) * bytes);
  const char* in = mine.data();
  if (in_place) {
    in = out.data() + group.rank() * bytes;
    std::copy(mine.begin(), mine.end(), out.begin() + group.rank() * bytes);
  }
  const absl::Status status = group.AllGather(in, out.data(), bytes);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(BitDifferences(out, expected), 0) << bytes << " bytes, in place " << in_place;
}

TEST(GlooCollectiveTest, EveryRankGathersEveryRow) {
  InEveryWorld([](Collective& group) {
    for (const int64_t bytes :
         {0, 1, 7, 64, 1000, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (9 << 20) + 5}) {
      CheckGather(group, bytes, false);
      if (bytes < (2 << 20)) CheckGather(group, bytes, true);
    }
  });
}

void CheckReduceScatter(Collective& group, int64_t count, bool in_place) {
  std::vector<float> in(group.world() * count), out(count), expected(count);
  for (size_t i = 0; i < in.size(); ++i) in[i] = Value(group.rank(), i);
  for (int64_t i = 0; i < count; ++i) {
    expected[i] = OrderedSum(group.world(), group.rank() * count + i);
  }
  float* target = in_place ? in.data() + group.rank() * count : out.data();
  const absl::Status status = group.ReduceScatter(in.data(), target, count);
  EXPECT_TRUE(status.ok()) << status;
  if (in_place) out.assign(target, target + count);
  EXPECT_EQ(BitDifferences(out, expected), 0) << count << " elements, in place " << in_place;
  for (int64_t i = 0; in_place && i < static_cast<int64_t>(in.size()); ++i) {
    if (i / count == group.rank()) continue;
    ASSERT_EQ(in[i], Value(group.rank(), i)) << "element " << i << " of the input was changed";
  }
}

TEST(GlooCollectiveTest, ReduceScatterIsTheSumInRankOrder) {
  InEveryWorld([](Collective& group) {
    for (const int64_t count :
         {0, 1, 5, 63, 64, 1000, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, 2'100'003}) {
      CheckReduceScatter(group, count, true);
      if (count < (512 << 10)) CheckReduceScatter(group, count, false);
    }
  });
}

TEST(GlooCollectiveTest, BigMessagesPass) {
  constexpr int64_t kBytes = 32 << 20;
  const RendezvousProcess rendezvous;
  ExpectRanks(2, [&](int rank) {
    const std::unique_ptr<Collective> group = Join(rendezvous, rank, 2);
    ASSERT_NE(group, nullptr);
    CheckGather(*group, kBytes, true);
    CheckReduceScatter(*group, kBytes / 4 / 2, false);
  });
}

TEST(GlooCollectiveTest, OrderOfTheSumShowsInTheTestValues) {
  int64_t differences = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const float other = ((Value(3, i) + Value(2, i)) + Value(1, i)) + Value(0, i);
    differences += std::bit_cast<uint32_t>(other) != std::bit_cast<uint32_t>(OrderedSum(4, i));
  }
  EXPECT_GT(differences, 100);
}

template <class T>
void CheckAllReduce(Collective& group, int64_t count) {
  const auto value = [](int rank, int64_t i) { return static_cast<T>(Value(rank, i)); };
  std::vector<T> sum(count), max(count), expected_sum(count), expected_max(count);
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = max[i] = value(group.rank(), i);
    expected_sum[i] = expected_max[i] = value(0, i);
    for (int r = 1; r < group.world(); ++r) {
      expected_sum[i] += value(r, i);
      expected_max[i] = std::max(expected_max[i], value(r, i));
    }
  }
  absl::Status status = group.AllReduce(sum.data(), count, Reduction::kSum);
  EXPECT_TRUE(status.ok()) << status;
  status = group.AllReduce(max.data(), count, Reduction::kMax);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(BitDifferences(sum, expected_sum), 0) << count;
  EXPECT_EQ(BitDifferences(max, expected_max), 0) << count;
}

TEST(GlooCollectiveTest, AllReduceGivesEveryRankTheSameBits) {
  InEveryWorld([](Collective& group) {
    for (const int64_t count : {0, 1, 3, 1000, 100'000}) {
      CheckAllReduce<float>(group, count);
      CheckAllReduce<double>(group, count);
      CheckAllReduce<int64_t>(group, count);
    }
  });
}

TEST(GlooCollectiveTest, NanOfOneRankReachesAll) {
  InEveryWorld([](Collective& group) {
    const bool last = group.rank() == group.world() - 1;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    float max[2] = {last ? nan : 1.0f, last ? 1.0f : -1.0f};
    float sum[1] = {last ? nan : 1.0f};
    ASSERT_TRUE(group.AllReduce(max, 2, Reduction::kMax).ok());
    ASSERT_TRUE(group.AllReduce(sum, 1, Reduction::kSum).ok());
    EXPECT_TRUE(std::isnan(max[0]));
    EXPECT_EQ(max[1], 1.0f);
    EXPECT_TRUE(std::isnan(sum[0]));
  });
}

TEST(GlooCollectiveTest, BroadcastGivesEveryRankWhatTheRootHas) {
  InEveryWorld([](Collective& group) {
    for (int root = 0; root < group.world(); ++root) {
      for (const int64_t bytes : {0, 1, 1000, (1 << 20) + 3}) {
        std::vector<char> data(bytes), expected(bytes);
        for (int64_t i = 0; i < bytes; ++i) {
          data[i] = Byte(group.rank(), i);
          expected[i] = Byte(root, i);
        }
        const absl::Status status = group.Broadcast(data.data(), bytes, root);
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(BitDifferences(data, expected), 0) << bytes << " bytes from " << root;
      }
    }
  });
}

TEST(GlooCollectiveTest, ControlWordsOfEveryRankReachEveryRank) {
  InEveryWorld([](Collective& group) {
    for (const size_t count : {0, 1, 3}) {
      std::vector<uint64_t> mine(count, 100 + group.rank());
      const absl::StatusOr<std::vector<uint64_t>> words = group.ExchangeSmall(mine);
      ASSERT_TRUE(words.ok()) << words.status();
      ASSERT_EQ(words->size(), count * group.world());
      for (size_t i = 0; i < words->size(); ++i) EXPECT_EQ((*words)[i], 100 + i / count);
    }
  });
}

TEST(GlooCollectiveTest, NoRankLeavesABarrierBeforeTheLastHasEntered) {
  constexpr int kRounds = 100;
  for (const int world : {2, 4}) {
    const RendezvousProcess rendezvous;
    const SharedCounter entered;
    ExpectRanks(world, [&](int rank) {
      const std::unique_ptr<Collective> group = Join(rendezvous, rank, world);
      ASSERT_NE(group, nullptr);
      for (int round = 1; round <= kRounds; ++round) {
        entered.Add(1);
        ASSERT_TRUE(group->Barrier().ok());
        ASSERT_GE(entered.value(), round * world) << "in round " << round;
      }
    });
  }
}

TEST(GlooCollectiveTest, RanksMeetAtAServerOfRankZero) {
  for (const int world : {2, 4}) {
    const ReservedPort port;
    ExpectRanks(world, [&](int rank) {
      absl::StatusOr<std::unique_ptr<Collective>> group =
          CreateGloo({.rank = rank, .world = world, .rendezvous = "tcp:" + port.host_port()});
      ASSERT_TRUE(group.ok()) << group.status();
      CheckReduceScatter(**group, 1000, false);
      CheckGather(**group, 1000, false);
    });
  }
}

TEST(GlooCollectiveTest, UnknownClientsOfTheRendezvousAreIgnored) {
  constexpr int kWorld = 2;
  const ReservedPort port;
  const SharedCounter strangers, formed;
  Gate plenty;
  ExpectRanks(kWorld + 1, [&](int process) {
    if (process == kWorld) {  // knocks until the group has formed, and the rest waits for it
      while (formed.value() < kWorld) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_port = htons(port.port());
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
          (void)!send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, MSG_NOSIGNAL);
          strangers.Add(1);
          if (strangers.value() == 100) plenty.Open();
        }
        (void)close(fd);
      }
      return;
    }
    if (process == 1) {
      EXPECT_TRUE(plenty.Wait(std::chrono::minutes(1)));
    }
    auto group =
        CreateGloo({.rank = process, .world = kWorld, .rendezvous = "tcp:" + port.host_port()});
    formed.Add(1);
    ASSERT_TRUE(group.ok()) << group.status();
    CheckGather(**group, 1000, false);
  });
  EXPECT_GE(strangers.value(), 100);
}

TEST(GlooCollectiveTest, LaterAttemptsFormGroupsAtTheSameRendezvous) {
  const RendezvousProcess rendezvous;
  for (const char* const attempt : {"1", "2"}) {
    ExpectRanks(2, [&](int rank) {
      const auto group = CreateGloo(
          {.rank = rank, .world = 2, .rendezvous = rendezvous.address(), .attempt = attempt});
      ASSERT_TRUE(group.ok()) << group.status();
      EXPECT_TRUE((*group)->Barrier().ok());
    });
  }
}

TEST(GlooCollectiveTest, InterfaceCanBeNamedInsteadOfAnAddress) {
  const RendezvousProcess rendezvous;
  ExpectRanks(2, [&](int rank) {
    auto group = CreateGloo(
        {.rank = rank, .world = 2, .rendezvous = rendezvous.address(), .interface = "lo"});
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ((*group)->Name(), "gloo tcp lo, rank " + std::to_string(rank) + " of 2");
    CheckGather(**group, 1000, false);
  });
}

TEST(GlooCollectiveTest, AddressOfAnotherMachineIsAnErrorThatNamesIt) {
  const RendezvousProcess rendezvous;
  ExpectRanks(2, [&](int rank) {
    const absl::Status status = CreateGloo({.rank = rank,
                                            .world = 2,
                                            .rendezvous = rendezvous.address(),
                                            .bind_address = "203.0.113.7"})
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(" over 203.0.113.7: "));
  });
}

TEST(GlooCollectiveTest, BadOptionsAreNamed) {
  const auto message = [](const GlooOptions& options) {
    const absl::Status status = CreateGloo(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message({.rank = 0, .world = 0}), "world = 0 not in [1, 1024]");
  EXPECT_EQ(message({.rank = 2, .world = 2}), "rank = 2 not in [0, 2)");
  EXPECT_EQ(message({.world = 2, .timeout = std::chrono::milliseconds(0)}),
            "timeout = 0 ms not above 0");
  EXPECT_EQ(message({.world = 2, .attempt = ""}), "attempt = \"\" does not have 1 to 128 bytes");
  EXPECT_EQ(message({.world = 2, .rendezvous = "nowhere"}),
            "rendezvous = \"nowhere\" is neither tcp:host:port nor served:host:port");
  EXPECT_EQ(message({.world = 2, .rendezvous = "tcp:localhost"}),
            "address: 'localhost'; allowed: host:port with a port of 0 to 65535");
}

}  // namespace
}  // namespace nibble
