// The watch of ranks on devices, and their collectives, with processes as ranks and devices that do
// what the test says.
#include "worker/trainer/comm/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "kernels/late/late_device.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/device_collective.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/rank_processes_testing.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kPatience = std::chrono::minutes(1);  // never waited for in full
constexpr int kWorld = 3;

// A device whose progress the test sets.
class ScriptedGroup final : public RankGroup {
 public:
  ScriptedGroup(int rank, int world) : rank_(rank), world_(world) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::string Name() const override { return "scripted"; }
  absl::Status AllGather(uint64_t number, const void*, void*, int64_t) override {
    return Run(number);
  }
  absl::Status ReduceScatter(uint64_t number, const float*, float*, int64_t) override {
    return Run(number);
  }
  absl::Status AllReduce(uint64_t number, void*, int64_t, ReduceElement, Reduction) override {
    return Run(number);
  }
  absl::Status Broadcast(uint64_t number, void*, int64_t, int) override { return Run(number); }

  // Operations from now on begin and do not complete.
  void Hang() { hangs_ = true; }
  void Begin(uint64_t number) { begun_ = number; }
  void Complete(uint64_t number) { completed_ = number; }
  Progress progress() const override {
    const uint64_t completed = completed_;
    return {.begun = begun_, .completed = completed};
  }
  absl::Status Health() override {
    const MutexLock lock(&mutex_);
    return health_;
  }
  void SetHealth(const absl::Status& health) {
    const MutexLock lock(&mutex_);
    health_ = health;
  }
  void Abort(const absl::Status& why) override {
    const MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = why;
    changed_.SignalAll();
  }
  // The error that it is aborted with; OK if that does not come.
  absl::Status AwaitAbort() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(&mutex_);
    while (aborted_.ok() && !changed_.WaitUntil(&mutex_, deadline)) {
    }
    return aborted_;
  }

 private:
  absl::Status Run(uint64_t number) {
    begun_ = number;
    if (!hangs_) completed_ = number;
    return absl::OkStatus();
  }
  const int rank_, world_;
  std::atomic<bool> hangs_ = false;
  std::atomic<uint64_t> begun_ = 0, completed_ = 0;
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_), aborted_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<RankWatch> JoinWatch(const RendezvousProcess& rendezvous, int rank,
                                     milliseconds timeout = kPatience,
                                     std::function<bool()> gives_up = nullptr) {
  auto hosts = CreateGloo({.rank = rank,
                           .world = kWorld,
                           .rendezvous = rendezvous.address(),
                           .timeout = timeout,
                           .gives_up = std::move(gives_up)});
  EXPECT_TRUE(hosts.ok()) << hosts.status();
  return std::make_unique<RankWatch>(
      *std::move(hosts), RankWatch::Options{.timeout = timeout, .beat = milliseconds(10)});
}

std::string Where(int rank) {
  return "ReduceScatter #5 on rank " + std::to_string(rank) + " of 3: ";
}

TEST(RankWatchTest, AKilledRankIsNamedLongBeforeTheTimeout) {
  const RendezvousProcess rendezvous;
  Gate ready[kWorld];
  const std::vector<RankOutcome> outcomes = RunRanks(kWorld, [&](int rank) {
    ScriptedGroup group(rank, kWorld);
    const auto watch = JoinWatch(rendezvous, rank);
    watch->Watch(&group);
    EXPECT_TRUE(watch->Enqueued("ReduceScatter", 5).ok());
    group.Begin(5);
    ready[rank].Open();
    if (rank == 1 && ready[0].Wait(kPatience) && ready[2].Wait(kPatience)) raise(SIGKILL);
    const absl::Status status = group.AwaitAbort();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(Where(rank)), HasSubstr("rank 1")));
    EXPECT_EQ(ExitOf(status), TrainerExit::kPeer);
    EXPECT_EQ(watch->status(), status);
    EXPECT_EQ(watch->Enqueued("AllGather", 6), status);
  });
  EXPECT_EQ(outcomes[0].exit_code, 0);
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  EXPECT_EQ(outcomes[2].exit_code, 0);
}

// The watch is the only thread that can: the rank's own waits for its device.
TEST(RankWatchTest, ARankThatIsAskedToGiveUpEndsItsOperationAndTheOthersEndTheirs) {
  const RendezvousProcess rendezvous;
  ExpectRanks(kWorld, [&](int rank) {
    std::atomic<bool> asked = false;
    ScriptedGroup group(rank, kWorld);
    const auto watch = JoinWatch(rendezvous, rank, kPatience, [&asked] { return asked.load(); });
    watch->Watch(&group);
    EXPECT_TRUE(watch->Enqueued("ReduceScatter", 5).ok());
    group.Begin(5);
    asked = rank == 1;
    const absl::Status status = group.AwaitAbort();
    EXPECT_EQ(ExitOf(status), TrainerExit::kPeer);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(rank == 1 ? "when this rank was asked to give up" : "gave up"));
  });
}

TEST(RankWatchTest, ARankThatLivesButDoesNotArriveIsNamedAfterTheTimeout) {
  constexpr milliseconds kTimeout{1000};  // more than a loaded machine keeps two ranks apart
  const RendezvousProcess rendezvous;
  ExpectRanks(kWorld, [&](int rank) {
    ScriptedGroup group(rank, kWorld);
    const auto watch = JoinWatch(rendezvous, rank, kTimeout);
    watch->Watch(&group);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(watch->Enqueued("ReduceScatter", 5).ok());
    group.Begin(rank == 2 ? 4 : 5);
    group.Complete(4);
    const absl::Status status = group.AwaitAbort();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, kTimeout);
    const std::string message(status.message());
    if (rank == 2) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(message, HasSubstr("gave up, missing rank 2"));
      return;
    }
    EXPECT_FALSE(status.ok());
    // The first that notices it tells the other.
    if (absl::IsDeadlineExceeded(status)) {
      EXPECT_EQ(message, Where(rank) +
                             "rank 2 has not arrived within 1000 ms; the last operation "
                             "that it began is #4");
    } else {
      EXPECT_EQ(message,
                Where(rank) + "rank " + std::to_string(1 - rank) + " gave up, missing rank 2");
    }
  });
}

TEST(RankWatchTest, RanksThatAreDoneLeaveWithoutAnError) {
  const RendezvousProcess rendezvous;
  ExpectRanks(kWorld, [&](int rank) {
    ScriptedGroup group(rank, kWorld);
    const auto watch = JoinWatch(rendezvous, rank);
    watch->Watch(&group);
    for (uint64_t number = 1; number <= 20; ++number) {
      EXPECT_TRUE(watch->Enqueued("AllGather", number).ok());
      group.Begin(number);
      group.Complete(number);
    }
    watch->Leave();
    EXPECT_TRUE(watch->status().ok()) << watch->status();
    EXPECT_TRUE(group.Health().ok());
  });
}

TEST(RankWatchTest, ARankThatLeavesBeforeAnOperationIsNamedByThoseInIt) {
  const RendezvousProcess rendezvous;
  ExpectRanks(kWorld, [&](int rank) {
    ScriptedGroup group(rank, kWorld);
    const auto watch = JoinWatch(rendezvous, rank);
    watch->Watch(&group);
    group.Begin(4);
    group.Complete(4);
    if (rank == 0) {
      watch->Leave();
      return;
    }
    if (watch->Enqueued("ReduceScatter", 5).ok()) {
      group.Begin(5);
      const absl::Status status = group.AwaitAbort();
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      // Or the other rank, which has noticed it and left, is named.
      EXPECT_THAT(std::string(status.message()), HasSubstr(Where(rank) + "rank "));
    }
  });
}

TEST(RankWatchTest, AnErrorOfTheTransportEndsTheOperationOfRanksThatAllLive) {
  const RendezvousProcess rendezvous;
  ExpectRanks(kWorld, [&](int rank) {
    ScriptedGroup group(rank, kWorld);
    const auto watch = JoinWatch(rendezvous, rank);
    watch->Watch(&group);
    EXPECT_TRUE(watch->Enqueued("ReduceScatter", 5).ok());
    group.Begin(5);
    group.SetHealth(absl::InternalError("a cable is broken"));
    const absl::Status status = group.AwaitAbort();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(Where(rank)));
  });
}

// What the observer is told.
class ToldObserver final : public CollectiveObserver {
 public:
  void Entered(const char* operation, uint64_t number) override {
    Set(operation + (" #" + std::to_string(number)));
  }
  void Left() override { Set(""); }
  bool Await(const std::string& wanted) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(&mutex_);
    while (where_ != wanted && !changed_.WaitUntil(&mutex_, deadline)) {
    }
    return where_ == wanted;
  }

 private:
  void Set(const std::string& where) {
    const MutexLock lock(&mutex_);
    where_ = where;
    changed_.SignalAll();
  }
  Mutex mutex_;
  CondVar changed_;
  std::string where_ ABSL_GUARDED_BY(mutex_);
};

class DeviceCollectiveTest : public testing::Test {
 protected:
  void Make(milliseconds timeout) {
    backend_ = *LateBackend::Create({});
    auto group = std::make_unique<ScriptedGroup>(0, 1);
    group_ = group.get();
    collective_ = std::make_unique<DeviceCollective>(
        *backend_, std::move(group), CreateLocal(),
        std::make_unique<RankWatch>(
            CreateLocal(), RankWatch::Options{.timeout = timeout, .beat = milliseconds(5)}),
        beside_);
    data_ = *backend_->memory().Allocate(1024);
  }
  absl::Status Gather() { return collective_->AllGather(data_.data(), data_.data(), 1024); }

  std::unique_ptr<LateBackend> backend_;
  Buffer data_;
  ScriptedGroup* group_ = nullptr;
  std::shared_ptr<Beside> beside_ = std::make_shared<Beside>(Beside::kComputation);
  std::unique_ptr<DeviceCollective> collective_;
};

TEST_F(DeviceCollectiveTest, AnOperationThatDoesNotCompleteFailsAndSoDoesWhatFollows) {
  Make(milliseconds(30));
  EXPECT_EQ(collective_->Name(), "scripted, rank 0 of 1");
  EXPECT_TRUE(Gather().ok());
  group_->Hang();
  EXPECT_TRUE(Gather().ok());
  const std::string why =
      "AllGather #2 on rank 0 of 1: every rank has arrived, but it is not complete after 30 ms";
  EXPECT_EQ(std::string(group_->AwaitAbort().message()), why);
  const absl::Status next = collective_->Barrier();
  EXPECT_TRUE(absl::IsDeadlineExceeded(next)) << next;
  EXPECT_THAT(std::string(next.message()), HasSubstr(why));
  EXPECT_EQ(ExitOf(next), TrainerExit::kPeer);
}

TEST_F(DeviceCollectiveTest, TheGroupIsToldWhatIsBesideEachOperation) {
  Make(kPatience);
  auto* const numbers = data_.data<float>();
  EXPECT_TRUE(collective_->AllGather(numbers, numbers, 1024, Beside::kNothing).ok());
  EXPECT_EQ(*beside_, Beside::kNothing);
  EXPECT_TRUE(Gather().ok());
  EXPECT_EQ(*beside_, Beside::kComputation);
  EXPECT_TRUE(collective_->ReduceScatter(numbers, numbers, 256, Beside::kNothing).ok());
  EXPECT_EQ(*beside_, Beside::kNothing);
  EXPECT_TRUE(collective_->ReduceScatter(numbers, numbers, 256).ok());
  EXPECT_EQ(*beside_, Beside::kComputation);
}

TEST_F(DeviceCollectiveTest, TheObserverIsToldInWhatTheDeviceWaits) {
  Make(kPatience);
  ToldObserver observer;
  collective_->set_observer(&observer);
  EXPECT_TRUE(Gather().ok());
  group_->Hang();
  EXPECT_TRUE(Gather().ok());
  EXPECT_TRUE(observer.Await("AllGather #2"));
  group_->Complete(2);
  EXPECT_TRUE(observer.Await(""));
  collective_->set_observer(nullptr);
}

// Of a rank that is in operation 7.
absl::Status Judged(const std::vector<WatchWords>& ranks, int64_t waited_ms) {
  return JudgeOperation(ranks, 0, 7, waited_ms, 1000);
}

TEST(JudgeOperationTest, RanksMayBeLateUntilTheTimeout) {
  const std::vector<WatchWords> ranks = {{7, 6}, {7, 6}, {5, 5}, {6, 5}};
  EXPECT_TRUE(Judged(ranks, 999).ok());
  EXPECT_EQ(Judged(ranks, 1000),
            absl::DeadlineExceededError("ranks 2, 3 have not arrived within 1000 ms"));
}

TEST(JudgeOperationTest, AnOperationThatAllHaveBegunMustCompleteInTime) {
  EXPECT_TRUE(Judged({{7, 6}, {7, 7}}, 999).ok());
  EXPECT_EQ(
      Judged({{7, 6}, {7, 7}}, 1000),
      absl::DeadlineExceededError("every rank has arrived, but it is not complete after 1000 ms"));
}

TEST(JudgeOperationTest, ARankThatHasLeftIsNotWaitedFor) {
  EXPECT_EQ(Judged({{7, 6}, {6, 6, kWatchLeaves}}, 0),
            absl::UnavailableError("rank 1 has left after operation #6"));
  EXPECT_TRUE(Judged({{7, 6}, {7, 7, kWatchLeaves}}, 0).ok());
}

TEST(WatchWordsTest, WordsAreReadAsTheyWereWritten) {
  const WatchWords words = {.begun = 9, .completed = 8, .state = kWatchFailed, .missing = 3};
  const auto flat = words.ToWords();
  const std::vector<WatchWords> read = WatchWords::FromWords(flat);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].ToWords(), flat);
}

}  // namespace
}  // namespace nibble
