// The errors that the ranks of a group get when one of them dies, hangs, leaves or never arrives.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/rank_processes_testing.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kPatience = std::chrono::minutes(1);  // never waited for in full
constexpr milliseconds kShort{300};

absl::StatusOr<std::unique_ptr<Collective>> TryJoin(const RendezvousProcess& rendezvous, int rank,
                                                    int world, milliseconds timeout = kPatience) {
  return CreateGloo(
      {.rank = rank, .world = world, .rendezvous = rendezvous.address(), .timeout = timeout});
}

std::unique_ptr<Collective> JoinDoomed(const RendezvousProcess& rendezvous, int rank, int world,
                                       milliseconds timeout = kPatience) {
  auto group = TryJoin(rendezvous, rank, world, timeout);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

struct NamedOperation {
  const char* name;
  std::function<absl::Status(Collective&)> run;
};

std::vector<NamedOperation> EveryOperation() {
  constexpr int64_t kCount = 100'000;
  return {
      {"AllGather",
       [](Collective& group) {
         std::vector<float> in(kCount), out(kCount * group.world());
         return group.AllGather(in.data(), out.data(), kCount * 4);
       }},
      {"ReduceScatter",
       [](Collective& group) {
         std::vector<float> in(kCount * group.world()), out(kCount);
         return group.ReduceScatter(in.data(), out.data(), kCount);
       }},
      {"AllReduce",
       [](Collective& group) {
         double x = 1;
         return group.AllReduce(&x, 1, Reduction::kSum);
       }},
      {"Broadcast",
       [](Collective& group) {
         std::vector<char> data(kCount);
         return group.Broadcast(data.data(), kCount, 0);
       }},
      {"Barrier", [](Collective& group) { return group.Barrier(); }},
      {"ExchangeSmall",
       [](Collective& group) {
         const uint64_t word = 1;
         return group.ExchangeSmall({&word, 1}).status();
       }},
  };
}

std::string Of(int rank, int world) {
  return " on rank " + std::to_string(rank) + " of " + std::to_string(world);
}

TEST(GlooFailureTest, KilledPeerIsNamedByEveryOtherRankInEveryOperation) {
  constexpr int kWorld = 3;
  for (const NamedOperation& operation : EveryOperation()) {
    SCOPED_TRACE(operation.name);
    const RendezvousProcess rendezvous;
    Gate ready[kWorld];
    const std::vector<RankOutcome> outcomes = RunRanks(kWorld, [&](int rank) {
      const std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, kWorld);
      ASSERT_NE(group, nullptr);
      ASSERT_TRUE(group->Barrier().ok());
      ready[rank].Open();
      if (rank == 1 && ready[0].Wait(kPatience) && ready[2].Wait(kPatience)) raise(SIGKILL);
      // A broadcast that has passed already cannot fail, so there may be several.
      absl::Status status;
      while (status.ok()) status = operation.run(*group);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr(operation.name), HasSubstr(Of(rank, kWorld)), HasSubstr("rank 1")));
    });
    EXPECT_EQ(outcomes[0].exit_code, 0);
    EXPECT_EQ(outcomes[1].signal, SIGKILL);
    EXPECT_EQ(outcomes[2].exit_code, 0);
  }
}

TEST(GlooFailureTest, PeerKilledInTheMiddleOfATransferIsNamedLongBeforeTheTimeout) {
  constexpr int kWorld = 3;
  for (int round = 0; round < 5; ++round) {
    const RendezvousProcess rendezvous;
    const std::vector<RankOutcome> outcomes = RunRanks(kWorld, [&](int rank) {
      const std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, kWorld);
      ASSERT_NE(group, nullptr);
      constexpr int64_t kCount = 1 << 20;
      std::vector<float> in(kCount * kWorld), out(kCount);
      absl::Status status;
      // Where in the operation it is struck differs from run to run.
      for (int i = 0; status.ok(); ++i) {
        if (rank == 1 && i == 2) std::thread([] { raise(SIGKILL); }).detach();
        status = group->ReduceScatter(in.data(), out.data(), kCount);
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("ReduceScatter #"), HasSubstr(" rank 1")));
    });
    EXPECT_EQ(outcomes[0].exit_code, 0);
    EXPECT_EQ(outcomes[1].signal, SIGKILL);
    EXPECT_EQ(outcomes[2].exit_code, 0);
  }
}

TEST(GlooFailureTest, HungPeerIsNamedOnceTheTimeoutHasPassed) {
  constexpr int kWorld = 3;
  constexpr milliseconds kTimeout{1000};  // more than a loaded machine keeps two ranks apart
  for (const NamedOperation& operation : EveryOperation()) {
    const std::string name = operation.name;
    if (name != "AllGather" && name != "ReduceScatter" && name != "AllReduce") continue;
    SCOPED_TRACE(name);
    const RendezvousProcess rendezvous;
    Gate given_up[2];
    ExpectRanks(kWorld, [&](int rank) {
      const std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, kWorld, kTimeout);
      ASSERT_NE(group, nullptr);
      ASSERT_TRUE(group->Barrier().ok());
      if (rank == 2) {
        EXPECT_TRUE(given_up[0].Wait(kPatience));
        EXPECT_TRUE(given_up[1].Wait(kPatience));
        // A rank that returns finds that the others have given up.
        EXPECT_FALSE(operation.run(*group).ok());
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      const absl::Status status = operation.run(*group);
      EXPECT_GE(std::chrono::steady_clock::now() - begin, kTimeout);
      given_up[rank].Open();
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_EQ(std::string(status.message()),
                name + " #2" + Of(rank, kWorld) + ": no answer from rank 2 within 1000 ms");
    });
  }
}

TEST(GlooFailureTest, ARankThatIsAskedToGiveUpLeavesItsOperationAndTheOthersHearOfIt) {
  constexpr int kWorld = 3;
  for (const bool before_it_begins : {false, true}) {
    SCOPED_TRACE(before_it_begins);
    const RendezvousProcess rendezvous;
    Gate given_up[2];
    ExpectRanks(kWorld, [&](int rank) {
      std::atomic<bool> asked = false;
      std::atomic<int> looks = 0;
      const auto group = CreateGloo({.rank = rank,
                                     .world = kWorld,
                                     .rendezvous = rendezvous.address(),
                                     .timeout = kPatience,
                                     .gives_up = [&] { return asked && looks++ > 0; }});
      ASSERT_TRUE(group.ok()) << group.status();
      ASSERT_TRUE((*group)->Barrier().ok());
      if (rank == 2) {  // hangs
        EXPECT_TRUE(given_up[0].Wait(kPatience));
        EXPECT_TRUE(given_up[1].Wait(kPatience));
        return;
      }
      asked = rank == 0;
      looks = before_it_begins ? 1 : 0;
      double x = 1;
      const absl::Status status = (*group)->AllReduce(&x, 1, Reduction::kSum);
      given_up[rank].Open();
      const std::string message(status.message());
      EXPECT_EQ(ExitOf(status), TrainerExit::kPeer);
      EXPECT_THAT(message, HasSubstr("AllReduce #2" + Of(rank, kWorld) + ": "));
      if (rank == 1) {
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_THAT(message, HasSubstr("rank 0 gave up"));
        return;
      }
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(message, HasSubstr(before_it_begins ? ": not begun" : "no answer from rank"));
      EXPECT_THAT(message, HasSubstr("when this rank was asked to give up"));
    });
  }
}

TEST(GlooFailureTest, FailedGroupRepeatsItsFirstErrorAtOnce) {
  const RendezvousProcess rendezvous;
  const std::vector<RankOutcome> outcomes = RunRanks(2, [&](int rank) {
    const std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, 2);
    ASSERT_NE(group, nullptr);
    if (rank == 1) raise(SIGKILL);
    const absl::Status first = group->Barrier();
    EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable) << first;
    for (const NamedOperation& operation : EveryOperation()) {
      const absl::Status later = operation.run(*group);
      EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable) << later;
      EXPECT_EQ(std::string(later.message()),
                std::string(operation.name) + Of(0, 2) +
                    " not started, the group has failed: " + std::string(first.message()));
    }
  });
  EXPECT_EQ(outcomes[0].exit_code, 0);
}

TEST(GlooFailureTest, RankThatHasFinishedIsReportedAsSuch) {
  const RendezvousProcess rendezvous;
  Gate gone;
  ExpectRanks(2, [&](int rank) {
    std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, 2);
    ASSERT_NE(group, nullptr);
    EXPECT_TRUE(group->Barrier().ok());
    if (rank == 1) {
      group.reset();
      gone.Open();
      return;
    }
    EXPECT_TRUE(gone.Wait(kPatience));
    const absl::Status status = group->Barrier();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(std::string(status.message()),
              "Barrier #2 on rank 0 of 2: rank 1 has left after 1 exchanges");
  });
}

TEST(GlooFailureTest, LastOperationSucceedsEverywhereThoughRanksLeaveRightAfterIt) {
  for (int round = 0; round < 20; ++round) {
    const RendezvousProcess rendezvous;
    ExpectRanks(3, [&](int rank) {
      const std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, 3);
      ASSERT_NE(group, nullptr);
      std::vector<char> data(1 << 20, static_cast<char>(rank));
      const absl::Status status = group->Broadcast(data.data(), data.size(), 1);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(data, std::vector<char>(1 << 20, 1));
    });
  }
}

TEST(GlooFailureTest, OperationsThatDisagreeFailInsteadOfMixingData) {
  const std::vector<std::pair<const char*, std::function<absl::Status(Collective&)>>> cases = {
      {"sizes",
       [](Collective& group) {
         std::vector<char> out(1000);
         return group.AllGather(out.data() + group.rank() * (100 + group.rank()), out.data(),
                                100 + group.rank());
       }},
      {"reductions",
       [](Collective& group) {
         float x = 1;
         return group.AllReduce(&x, 1, group.rank() == 0 ? Reduction::kSum : Reduction::kMax);
       }},
      {"elements",
       [](Collective& group) {
         double x = 1;
         int64_t y = 1;
         return group.rank() == 0 ? group.AllReduce(&x, 1, Reduction::kSum)
                                  : group.AllReduce(&y, 1, Reduction::kSum);
       }},
      {"operations",
       [](Collective& group) {
         const uint64_t word = 1;
         return group.rank() == 0 ? group.Barrier() : group.ExchangeSmall({&word, 1}).status();
       }},
      {"roots",
       [](Collective& group) {
         char data[10] = {};
         return group.Broadcast(data, 10, group.rank());
       }},
  };
  for (const auto& [name, run] : cases) {
    SCOPED_TRACE(name);
    const RendezvousProcess rendezvous;
    ExpectRanks(2, [&](int rank) {
      const std::unique_ptr<Collective> group = JoinDoomed(rendezvous, rank, 2, kShort);
      ASSERT_NE(group, nullptr);
      const absl::Status status = run(*group);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(rank == 0 ? "rank 1" : "rank 0"));
    });
  }
}

TEST(GlooFailureTest, RanksThatDoNotArriveAreNamed) {
  const RendezvousProcess rendezvous;
  ExpectRanks(2, [&](int rank) {
    const absl::Status status = CreateGloo({.rank = rank * 2,  // 0 and 2 of 6
                                            .world = 6,
                                            .rendezvous = rendezvous.address(),
                                            .attempt = "7",
                                            .connect_timeout = kShort})
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(std::string(status.message()),
              "rendezvous of attempt \"7\": ranks 1, 3, 4 and 1 more of 6 have not arrived");
  });
}

TEST(GlooFailureTest, RankOfAnotherWorldIsNamed) {
  const RendezvousProcess rendezvous;
  ExpectRanks(2, [&](int rank) {
    const absl::Status status = TryJoin(rendezvous, rank, 2 + rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(std::string(status.message()),
              rank == 0 ? "rank 1 arrived with world 3, rank 0 with world 2"
                        : "rank 0 arrived with world 2, rank 1 with world 3");
  });
}

TEST(GlooFailureTest, SecondProcessWithTheSameRankIsRefused) {
  const RendezvousProcess rendezvous;
  const SharedCounter joined, refused;
  Gate one_refused;
  ExpectRanks(3, [&](int process) {
    if (process == 0) {
      EXPECT_TRUE(one_refused.Wait(kPatience));
      EXPECT_NE(JoinDoomed(rendezvous, 0, 2), nullptr);
      return;
    }
    const auto group = TryJoin(rendezvous, 1, 2);
    if (group.ok()) return joined.Add(1);
    EXPECT_EQ(group.status().code(), absl::StatusCode::kAlreadyExists) << group.status();
    EXPECT_THAT(std::string(group.status().message()),
                HasSubstr("rank 1 of attempt \"0\" has arrived before"));
    refused.Add(1);
    one_refused.Open();
  });
  EXPECT_EQ(joined.value(), 1);
  EXPECT_EQ(refused.value(), 1);
}

TEST(GlooFailureTest, AttemptsAtOneRendezvousDoNotMeet) {
  const RendezvousProcess rendezvous;
  const auto join = [&](int rank, const char* attempt, milliseconds patience) {
    return CreateGloo({.rank = rank,
                       .world = 2,
                       .rendezvous = rendezvous.address(),
                       .attempt = attempt,
                       .connect_timeout = patience});
  };
  Gate old_gave_up;
  ExpectRanks(3, [&](int process) {
    if (process == 2) {  // a late rank of an older attempt
      EXPECT_TRUE(absl::IsDeadlineExceeded(join(0, "1", kShort).status()));
      old_gave_up.Open();
      return;
    }
    auto group = join(process, "2", kPatience);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_TRUE(old_gave_up.Wait(kPatience));
    EXPECT_TRUE((*group)->Barrier().ok());
  });
}

}  // namespace
}  // namespace nibble
