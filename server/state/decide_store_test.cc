#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/decide.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

std::string Digits(char c) { return std::string(32, c); }

// A coordinator's store, and what a worker shows it.
class StoreHistory : public ::testing::Test {
 protected:
  StoreHistory() {
    Start('a');
    at_->AddWorkers(1, 4);
  }

  v1::StoreIdentity store() const { return at_->state().store(); }
  // An opening with ids of this digit.
  void Start(char digit, bool restored = false) {
    EXPECT_EQ(at_->Run(DecideStart(at_->state(), "test", {Digits(digit), "key"}, restored,
                                       at_->caller())),
              absl::OkStatus());
  }
  void Change(int updates) {
    for (int i = 0; i < updates; ++i) (void)at_->Submit(1);
  }
  absl::Status See(const v1::StoreIdentity& seen, bool authentic = true) {
    const std::string worker = "w1";
    MaybeUpdate update = DecideStoreSeen(at_->state(),
                                         {.worker = worker,
                                          .seen = seen,
                                          .authentic = [authentic] { return authentic; },
                                          .began = began_,
                                          .restored = restored_},
                                         Digits(fresh_), at_->caller());
    return at_->Run(std::move(update));
  }

  TestCluster cluster_;
  TestCluster* at_ = &cluster_;
  char fresh_ = 'f';
  bool began_ = false;
  bool restored_ = false;
};

TEST_F(StoreHistory, AnOldStoreGetsAnIdentityAndANewEpochWithEachRestore) {
  TestCluster old;  // made without ids
  old.AddWorkers(1, 4);
  EXPECT_EQ(old.state().store().id(), "");
  const auto start = [&](char digit, bool restored) {
    return old.Run(
        DecideStart(old.state(), "test", {Digits(digit), "key"}, restored, old.caller()));
  };
  ASSERT_EQ(start('1', false), absl::OkStatus());
  EXPECT_EQ(old.state().store().id(), Digits('1'));
  EXPECT_EQ(old.state().store().epoch(), 1);
  ASSERT_EQ(start('2', false), absl::OkStatus());
  EXPECT_EQ(old.state().store().epoch(), 1);
  EXPECT_EQ(old.state().store().epoch_id(), Digits('1'));
  EXPECT_EQ(old.state().store().life(), Digits('2'));
  ASSERT_EQ(start('3', true), absl::OkStatus());
  EXPECT_EQ(old.state().store().id(), Digits('1'));
  EXPECT_EQ(old.state().store().epoch(), 2);
  EXPECT_EQ(old.state().store().epoch_id(), Digits('3'));
}

TEST_F(StoreHistory, AnIdentityIsHexadecimalAndNeverChanges) {
  const auto restored = [&](const std::string& id, int64_t epoch, const std::string& epoch_id) {
    return at_->Apply(at_->Facts([&](v1::Fact& fact) {
      fact.mutable_store_restored()->set_store_id(id);
      fact.mutable_store_restored()->set_epoch(epoch);
      fact.mutable_store_restored()->set_epoch_id(epoch_id);
    }));
  };
  EXPECT_TRUE(absl::IsInvalidArgument(restored("xyz", 2, Digits('b'))));
  EXPECT_TRUE(absl::IsInvalidArgument(restored(Digits('a'), 2, "xyz")));
  EXPECT_TRUE(absl::IsFailedPrecondition(restored(Digits('b'), 2, Digits('b'))));
  EXPECT_TRUE(absl::IsInvalidArgument(restored(Digits('a'), 1, Digits('b'))));
  EXPECT_EQ(restored(Digits('a'), 7, Digits('b')), absl::OkStatus());
}

TEST_F(StoreHistory, WhatItHasSentItselfSaysNothingNew) {
  const v1::StoreIdentity first = store();
  Change(3);
  const v1::StoreIdentity last = store();
  Start('b');
  Change(2);
  for (const v1::StoreIdentity& seen : {first, last, store()}) {
    EXPECT_EQ(See(seen, /*authentic=*/false), absl::OkStatus());
    EXPECT_EQ(store().epoch(), 1) << seen.ShortDebugString();
  }
}

TEST_F(StoreHistory, AnotherStoreAndAnEarlierEpochSayNothing) {
  v1::StoreIdentity other = store();
  other.set_id(Digits('9'));
  other.set_sequence(10'000);
  EXPECT_EQ(See(other, false), absl::OkStatus());
  v1::StoreIdentity earlier = store();
  earlier.set_sequence(10'000);
  Start('b', true);
  EXPECT_EQ(See(earlier, false), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
}

TEST_F(StoreHistory, ALaterUpdateOfItsEpochBeginsANewOne) {
  v1::StoreIdentity seen = store();
  seen.set_sequence(seen.sequence() + 1);
  EXPECT_EQ(See(seen), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
  EXPECT_EQ(store().epoch_id(), Digits('f'));
  EXPECT_EQ(store().life(), Digits('a'));
  // The worker shows the same until it follows the new epoch.
  EXPECT_EQ(See(seen), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
}

TEST_F(StoreHistory, ACopyThatHasMadeAsManyUpdatesIsToldFromTheOriginal) {
  TestCluster copy = cluster_;
  Start('b');
  Change(5);
  const v1::StoreIdentity original = store();  // what the worker has seen
  at_ = &copy;
  Start('c');
  Change(9);
  ASSERT_GT(store().sequence(), original.sequence());
  EXPECT_EQ(store().epoch_id(), original.epoch_id());
  EXPECT_EQ(See(original), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
}

TEST_F(StoreHistory, AnUpdateThatALaterLifeMadeDifferentlyIsNotItsOwn) {
  // The disk lost the last updates of the life before.
  v1::StoreIdentity lost = store();
  lost.set_sequence(lost.sequence() + 2);
  Start('b');
  Change(5);
  EXPECT_EQ(See(lost), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
}

TEST_F(StoreHistory, ABackupThatIsRestoredTwiceBeginsAThirdEpoch) {
  TestCluster backup = cluster_;
  Start('b', true);
  const v1::StoreIdentity first = store();
  at_ = &backup;
  Start('c', true);
  Change(4);
  ASSERT_EQ(store().epoch(), first.epoch());
  EXPECT_EQ(See(first), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 3);
}

TEST_F(StoreHistory, OfTwoLivingCoordinatorsWithOneEpochTheLowerIdIsReplaced) {
  began_ = true;
  v1::StoreIdentity other = store();
  other.set_epoch_id(Digits('0'));
  EXPECT_EQ(See(other), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);  // this one continues
  other = store();
  other.set_epoch_id(Digits('f') + "0");
  EXPECT_EQ(See(other), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
  EXPECT_FALSE(at_->state().Replaced().ok());
}

TEST_F(StoreHistory, AReplacedCoordinatorChangesNothingUntilItIsRestored) {
  v1::StoreIdentity later = store();
  later.set_epoch(4);
  later.set_epoch_id(Digits('e'));
  ASSERT_EQ(See(later), absl::OkStatus());
  const absl::Status refused = at_->Apply(at_->Facts([](v1::Fact& fact) {
    fact.mutable_store_opened()->set_life(Digits('d'));
  }));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("this coordinator was replaced, and changes nothing: worker w1 has seen "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("epoch 4"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--restored"));
  const int64_t sequence = store().sequence();
  Start('d');  // it stays replaced
  EXPECT_EQ(store().sequence(), sequence);
  Start('d', true);
  EXPECT_EQ(store().epoch(), 5);
  EXPECT_EQ(at_->state().Replaced(), absl::OkStatus());
}

TEST_F(StoreHistory, ARestoredCoordinatorContinuesBeyondALaterEpochOnce) {
  restored_ = true;
  v1::StoreIdentity later = store();
  later.set_epoch(4);
  later.set_epoch_id(Digits('e'));
  EXPECT_EQ(See(later), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 5);
  // The other one is alive.
  began_ = true;
  later.set_epoch(6);
  EXPECT_EQ(See(later), absl::OkStatus());
  EXPECT_FALSE(at_->state().Replaced().ok());
}

TEST_F(StoreHistory, WhatTheStoreHasNotIssuedIsRefused) {
  v1::StoreIdentity forged = store();
  forged.set_sequence(forged.sequence() + 100);
  const absl::Status refused = See(forged, /*authentic=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("which has not issued"));
  forged.set_epoch(9);
  EXPECT_TRUE(absl::IsPermissionDenied(See(forged, false)));
  EXPECT_EQ(store().epoch(), 1);
  EXPECT_EQ(at_->state().Replaced(), absl::OkStatus());
}

TEST_F(StoreHistory, MoreLivesThanAreKeptBeginAnEpochForAWorkerThatWasAway) {
  const v1::StoreIdentity away = store();
  for (int i = 0; i < kMaxLives; ++i) Start(i % 2 == 0 ? 'b' : 'c');
  const auto& lives = FindIn(at_->state().tables().cluster, kOnlyKey)->lives();
  EXPECT_EQ(lives.size(), kMaxLives);
  EXPECT_EQ(store().epoch(), 1);
  EXPECT_EQ(See(away), absl::OkStatus());
  EXPECT_EQ(store().epoch(), 2);
}

}  // namespace
}  // namespace nibble
