#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "server/controller/ledger.h"
#include "server/controller/log.h"
#include "server/state/decide.h"
#include "server/store/store_testing.h"

namespace nibble {
namespace {

class LedgerTest : public testing::Test {
 protected:
  LedgerTest() { Open(); }
  ~LedgerTest() override {
    ledger_.reset();
    store_.reset();
  }

  void Open() {
    ledger_.reset();
    store_.reset();
    auto memory = MemoryStore::Open(disk_, {.cluster = "test"});
    ASSERT_EQ(memory.status(), absl::OkStatus());
    store_ = std::make_unique<FaultyStore>(*std::move(memory));
    auto ledger = Ledger::Open(*store_);
    ASSERT_EQ(ledger.status(), absl::OkStatus());
    ledger_ = *std::move(ledger);
    ledger_->SetHooks({.applied =
                           [this](const Ledger::Applied& applied) {
                             sequences_.push_back(applied.update.sequence());
                           },
                       .stopped = [this](const absl::Status&) { ++stops_; }});
    EXPECT_EQ(ledger_->ChangeAndWait([](const State& state) {
      return DecideStart(state, "test", {}, false, {"coordinator", 1000});
    }),
              absl::OkStatus());
  }

  // Makes a queue of this name; refused if it exists.
  static MaybeUpdate MakeQueue(const State& state, const std::string& name) {
    v1::SetQueueRequest request;
    request.set_request_id(absl::StrCat("request-", name));
    request.mutable_queue()->set_name(name);
    request.mutable_queue()->set_quota_slots(1);
    NIBBLE_ASSIGN_OR_RETURN(auto decision, Decide(state, request, {"ann", 1000}));
    return std::move(decision.update);
  }
  std::future<absl::Status> Begin(const std::string& name) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    auto future = answer->get_future();
    ledger_->Change([&](const State& state) { return MakeQueue(state, name); },
                    [answer](const absl::Status& status) { answer->set_value(status); });
    return future;
  }
  bool Shown(const std::string& name) { return ledger_->Shown()->FindQueue(name) != nullptr; }
  static bool IsReady(std::future<absl::Status>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  std::unique_ptr<FaultyStore> store_;
  std::unique_ptr<Ledger> ledger_;
  std::vector<int64_t> sequences_;
  std::atomic<int> stops_ = 0;
};

TEST_F(LedgerTest, AcknowledgedMeansDurable) {
  EXPECT_EQ(Begin("a").get(), absl::OkStatus());
  Open();
  EXPECT_TRUE(Shown("a"));
}

TEST_F(LedgerTest, NothingIsAnsweredOrShownBeforeItIsDurable) {
  store_->Hold();
  auto answer = Begin("a");
  EXPECT_FALSE(IsReady(answer));
  EXPECT_FALSE(Shown("a"));
  store_->Release();
  EXPECT_EQ(answer.get(), absl::OkStatus());
  EXPECT_TRUE(Shown("a"));
}

TEST_F(LedgerTest, ALaterDecisionSeesAnEarlierOneThatIsNotDurableYet) {
  store_->Hold();
  auto first = Begin("a");
  EXPECT_NE(ledger_->Decided()->FindQueue("a"), nullptr);
  // Neither a repeated request nor a refusal is answered before the change it depends on is
  // durable.
  auto again = Begin("a");
  EXPECT_FALSE(IsReady(again));
  store_->Release();
  EXPECT_EQ(first.get(), absl::OkStatus());
  EXPECT_EQ(again.get(), absl::OkStatus());
}

TEST_F(LedgerTest, AReaderKeepsWhatItReadsWhileChangesAreDecidedStoredAndShown) {
  EXPECT_EQ(Begin("a").get(), absl::OkStatus());
  const std::shared_ptr<const State> read = ledger_->Shown();
  const v1::Queue* const queue = read->FindQueue("a");
  // Changes made while it reads do not wait for it.
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Begin(absl::StrCat("b", i)).get(), absl::OkStatus());
  }
  EXPECT_TRUE(Shown("b99"));
  EXPECT_EQ(read->FindQueue("a"), queue);
  EXPECT_EQ(read->FindQueue("b0"), nullptr);
  EXPECT_EQ(ledger_->Shown()->FindQueue("a"), queue) << "what has not changed is shared";
}

TEST_F(LedgerTest, AFailedWriteAcknowledgesNothingAndStopsTheLedger) {
  store_->FailAppend(3, FaultyStore::Fault::kLost);  // after the cluster's name and "a"
  EXPECT_EQ(Begin("a").get(), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(Begin("b").get()));
  EXPECT_TRUE(absl::IsUnavailable(Begin("c").get()));
  EXPECT_EQ(stops_, 1);
  EXPECT_FALSE(ledger_->Health().ok());
  EXPECT_FALSE(Shown("b"));
  EXPECT_TRUE(Shown("a"));  // reads still work
  Open();
  EXPECT_TRUE(Shown("a"));
  EXPECT_FALSE(Shown("b"));
}

TEST_F(LedgerTest, AWriteReportedAsFailedButStoredIsKnownAfterARestart) {
  store_->FailAppend(2, FaultyStore::Fault::kWritten);
  EXPECT_TRUE(absl::IsUnavailable(Begin("a").get()));
  Open();
  EXPECT_TRUE(Shown("a"));
  EXPECT_EQ(Begin("a").get(), absl::OkStatus());  // the retry gets the first answer
}

TEST_F(LedgerTest, ConcurrentCallersShareWritesAndTheOrderOfTheJournal) {
  constexpr int kThreads = 8;
  constexpr int kEach = 20;
  store_->Hold();
  std::vector<std::vector<std::future<absl::Status>>> answers(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        answers[static_cast<size_t>(t)].push_back(Begin(absl::StrCat("q", t, "-", i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store_->Release();
  for (auto& of_thread : answers) {
    for (auto& answer : of_thread) EXPECT_EQ(answer.get(), absl::OkStatus());
  }
  ledger_->Settle();
  EXPECT_EQ(sequences_.size(), 1u + kThreads * kEach);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    EXPECT_EQ(sequences_[i], static_cast<int64_t>(i + 1));
  }
  const int64_t durable = static_cast<int64_t>(store_->Info().last_sequence);
  EXPECT_EQ(durable, sequences_.back());
}

TEST_F(LedgerTest, AfterCloseNothingIsAccepted) {
  ledger_->Close();
  EXPECT_TRUE(absl::IsUnavailable(Begin("a").get()));
}

TEST(LogTest, ALineHasTimeLevelAndTextAndIsOneLine) {
  EXPECT_EQ(LogLine(1'000, LogLevel::kWarning, "two\nlines"),
            "1970-01-01T00:00:01.000Z WARNING two lines");
}

}  // namespace

}  // namespace nibble
