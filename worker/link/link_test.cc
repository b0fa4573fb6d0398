#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/link/link_host.h"
#include "worker/link/link_messages.h"
#include "worker/link/rank_link.h"
#include "worker/link/waiting_page.h"

namespace nibble {
namespace {

using link::v1::Command;
using link::v1::RankReport;
using testing::HasSubstr;

constexpr std::chrono::seconds kPatience(20);

Command CommandOf(v1::GangCommand command, int64_t checkpoint_request = 0) {
  Command message;
  message.set_command(command);
  message.set_checkpoint_request(checkpoint_request);
  return message;
}

class LinkTest : public testing::Test {
 protected:
  LinkTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    auto host = LinkHost::Start({.address = directory_ + "/link",
                                 .attempt = 3,
                                 .first_rank = 0,
                                 .ranks = 2,
                                 .clock = [this] { return now_.load(); },
                                 .changed =
                                     [this] {
                                       { MutexLock lock(&mutex_); }
                                       changed_.SignalAll();
                                     }});
    EXPECT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }
  ~LinkTest() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }

  absl::StatusOr<std::unique_ptr<RankLink>> TryConnect(int32_t rank, int64_t attempt = 3) {
    return RankLink::Connect({.address = host_->address(), .rank = rank, .attempt = attempt});
  }
  std::unique_ptr<RankLink> Connect(int32_t rank) {
    auto link = TryConnect(rank);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  // Waits until the host's ranks are as `done` wants.
  template <class Done>
  bool Await(Done done) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(&mutex_);
    while (!done(host_->Ranks())) {
      if (changed_.WaitUntil(&mutex_, until)) return false;
    }
    return true;
  }
  void MakeStep(RankLink& link, int64_t next_step, int64_t took_ms) {
    now_ += took_ms;
    RankReport report;
    report.set_activity(link::v1::RANK_ACTIVITY_STEPS);
    report.set_next_step(next_step);
    report.mutable_sample()->set_step(next_step - 1);
    report.mutable_sample()->set_loss(2.5);
    report.mutable_sample()->set_data_seconds(0.5);
    link.Report(report);
    EXPECT_TRUE(Await([&](const auto& ranks) {
      const auto at = ranks.find(0);
      return at != ranks.end() && at->second.report.next_step() == next_step;
    }));
  }

  std::string directory_ = "/tmp/nibble-link-XXXXXX";  // sockets have short names
  std::atomic<int64_t> now_ = 1000;
  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<LinkHost> host_;
};

Command AwaitCommand(RankLink& link, const Command& wanted) {
  for (int i = 0; i < 20; ++i) {
    if (link.command().SerializeAsString() == wanted.SerializeAsString()) break;
    const absl::Status status = link.WaitForChange(std::chrono::seconds(1));
    EXPECT_TRUE(status.ok()) << status;
  }
  return link.command();
}

void ExpectEqual(const google::protobuf::Message& a, const google::protobuf::Message& b) {
  EXPECT_EQ(a.DebugString(), b.DebugString());
}

// The error that ends the link.
absl::Status EndOf(RankLink& link) {
  absl::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = link.WaitForChange(std::chrono::seconds(1));
  return status;
}

TEST_F(LinkTest, ATraceIsRequestedFromEveryRankThatIsConnectedAndFromNoLaterOne) {
  const auto zero = Connect(0);
  link::v1::TraceCommand trace;
  trace.set_number(1);
  trace.set_steps(2);
  trace.set_path("/tmp/trace.json");
  host_->Trace(trace);
  std::optional<link::v1::TraceCommand> taken;
  while (!taken.has_value()) {
    ASSERT_TRUE(zero->WaitForChange(kPatience).ok());
    taken = zero->TakeTrace();
  }
  EXPECT_EQ(taken->steps(), 2);
  EXPECT_EQ(taken->path(), "/tmp/trace.json");
  EXPECT_FALSE(zero->TakeTrace().has_value());

  const auto one = Connect(1);
  trace.set_number(2);
  host_->Trace(trace);
  do {
    ASSERT_TRUE(one->WaitForChange(kPatience).ok());
    taken = one->TakeTrace();
  } while (!taken.has_value());
  EXPECT_EQ(taken->number(), 2);  // not the first
}

TEST_F(LinkTest, WithoutACommandTheJobRuns) {
  const auto link = Connect(0);
  EXPECT_EQ(link->Poll(), absl::OkStatus());
  ExpectEqual(link->command(), Command());
}

TEST_F(LinkTest, ACommandSetBeforeRankZeroConnectsIsThereOnceItIsConnected) {
  const Command command = CommandOf(v1::GANG_COMMAND_PAUSE, 4);
  host_->SetCommand(command);
  ExpectEqual(Connect(0)->command(), command);
}

TEST_F(LinkTest, ALargeTimelineArrivesComplete) {
  const auto link = Connect(0);
  Command command;
  command.add_revisions()->set_reason(std::string(3 << 20, 'q'));
  host_->SetCommand(command);
  ExpectEqual(AwaitCommand(*link, command), command);
}

TEST_F(LinkTest, OnlyRankZeroReceivesCommands) {
  const auto zero = Connect(0);
  const auto one = Connect(1);
  const Command command = CommandOf(v1::GANG_COMMAND_STOP);
  host_->SetCommand(command);
  ExpectEqual(AwaitCommand(*zero, command), command);
  EXPECT_EQ(one->Poll(), absl::OkStatus());
  ExpectEqual(one->command(), Command());
}

TEST_F(LinkTest, StepsAndTheirMedianAreRecorded) {
  const auto link = Connect(0);
  MakeStep(*link, 1, 5000);  // the first does not count
  for (int64_t step = 2; step <= 6; ++step) MakeStep(*link, step, step == 4 ? 900 : 100);
  const auto ranks = host_->TakeRanks();
  const LinkHost::Rank& rank = ranks.at(0);
  EXPECT_EQ(rank.median_step_ms, 100);
  EXPECT_EQ(rank.step_at_ms, now_.load());
  EXPECT_EQ(rank.pid, getpid());
  ASSERT_EQ(rank.samples.size(), 6u);
  EXPECT_EQ(rank.samples.back().step(), 5);
  EXPECT_EQ(rank.samples.back().data_seconds(), 0.5);
  EXPECT_TRUE(host_->Ranks().at(0).samples.empty());
}

TEST_F(LinkTest, ARankOfAnotherAttemptIsRefused) {
  const absl::Status status = TryConnect(0, 2).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attempt 2, not 3"));
  EXPECT_FALSE(host_->Ranks().contains(0));
}

TEST_F(LinkTest, RanksAreInRangeAndConnectOnce) {
  const auto one = Connect(1);
  EXPECT_TRUE(absl::IsInvalidArgument(TryConnect(2).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(TryConnect(1).status()));
  EXPECT_EQ(one->Poll(), absl::OkStatus());
}

TEST_F(LinkTest, ARankThatIsGoneIsNoLongerConnectedAndMayConnectAgain) {
  auto link = Connect(1);
  EXPECT_TRUE(host_->Ranks().at(1).connected);
  link.reset();
  EXPECT_TRUE(Await([](const auto& ranks) { return !ranks.at(1).connected; }));
  EXPECT_EQ(Connect(1)->Poll(), absl::OkStatus());
}

TEST_F(LinkTest, ADaemonThatIsGoneIsAnErrorOfPoll) {
  const auto link = Connect(0);
  const std::string address = host_->address();
  host_.reset();
  const absl::Status status = EndOf(*link);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_EQ(link->Poll(), status);
  link->Report(RankReport());  // has no effect
}

TEST_F(LinkTest, WhereNobodyListensTheAddressIsNamed) {
  const std::string address = host_->address();
  host_.reset();
  const absl::Status status = RankLink::Connect({.address = address}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_TRUE(absl::IsInvalidArgument(RankLink::Connect({.address = ""}).status()));
}

TEST_F(LinkTest, OfReportsThatTheDaemonIsTooSlowForOnlyTheNewestArrives) {
  const auto link = Connect(0);
  RankReport report;
  report.set_trouble(std::string(1 << 20, 'x'));
  {
    MutexLock lock(&mutex_);  // the host waits in `changed` after its first message
    for (int64_t step = 1; step <= 1000; ++step) {
      report.set_next_step(step);
      link->Report(report);
    }
  }
  EXPECT_EQ(link->Poll(), absl::OkStatus());
  EXPECT_TRUE(Await([&](const auto& ranks) {
    EXPECT_EQ(link->Poll(), absl::OkStatus());
    return ranks.at(0).report.next_step() == 1000;
  }));
}

TEST_F(LinkTest, AMalformedReportEndsTheLinkAndTheRankLearnsTheField) {
  const auto link = Connect(0);
  RankReport report;
  report.add_precision()->set_layer(std::string(kMaxLayerNameBytes + 1, 'x'));
  link->Report(report);
  const absl::Status status = EndOf(*link);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("report.precision.layer: 129 bytes"));
}

link::v1::Rejoin OrderOf(int64_t attempt) {
  link::v1::Rejoin order;
  order.set_attempt(attempt);
  order.set_rendezvous("served:127.0.0.1:1");
  order.set_resume_step(-1);
  return order;
}

TEST_F(LinkTest, ARankThatStandsByIsOrderedToALaterAttemptEvenAfterItsHostHasRetired) {
  const auto idle = Connect(1);
  auto link = Connect(0);
  EXPECT_TRUE(absl::IsNotFound(host_->Rejoin(0, OrderOf(4), kPatience)));
  std::thread rank([&link] {
    const auto order = link->StandBy("lost rank 1", kPatience);
    ASSERT_TRUE(order.ok()) << order.status();
    EXPECT_EQ(order->attempt(), 4);
    EXPECT_EQ(order->rendezvous(), "served:127.0.0.1:1");
    link.reset();
  });
  EXPECT_TRUE(Await([](const auto& ranks) { return ranks.at(0).standing_by == "lost rank 1"; }));
  host_->Retire();
  EXPECT_TRUE(absl::IsUnavailable(idle->WaitForChange(kPatience))) << "only those that stand by";
  EXPECT_FALSE(std::filesystem::exists(host_->address()));
  EXPECT_TRUE(absl::IsNotFound(host_->Rejoin(1, OrderOf(4), kPatience)));
  EXPECT_EQ(host_->Rejoin(0, OrderOf(4), kPatience), absl::OkStatus());
  rank.join();
}

TEST_F(LinkTest, AProcessThatDoesNotAnswerTheOrderIsReported) {
  auto link = Connect(0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      link->StandBy("lost rank 1", std::chrono::milliseconds(1)).status()));
  EXPECT_TRUE(Await([](const auto& ranks) { return ranks.at(0).standing_by.has_value(); }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(host_->Rejoin(0, OrderOf(4), std::chrono::milliseconds(1))));
  link.reset();
  const absl::Status gone = host_->Rejoin(0, OrderOf(4), kPatience);
  EXPECT_TRUE(absl::IsUnavailable(gone) || absl::IsNotFound(gone)) << gone;
}

TEST_F(LinkTest, ARankThatStandsByLearnsThatItsDaemonIsGone) {
  auto link = Connect(0);
  std::thread rank([&link] {
    EXPECT_TRUE(absl::IsUnavailable(link->StandBy("lost rank 1", kPatience).status()));
  });
  EXPECT_TRUE(Await([](const auto& ranks) { return ranks.at(0).standing_by.has_value(); }));
  host_.reset();
  rank.join();
}

TEST_F(LinkTest, ARankThatReadsNoMessagesIsAskedOverItsPageToGiveUp) {
  const auto link = Connect(0);
  const auto other = Connect(1);
  EXPECT_TRUE(Await([](const auto& ranks) { return ranks.size() == 2; }));
  host_->AskToGiveUp(0);
  host_->AskToGiveUp(2);  // never connected
  EXPECT_FALSE(host_->Ranks().at(0).gives_up);
  EXPECT_TRUE(link->page().MustGiveUp());
  EXPECT_FALSE(other->page().MustGiveUp());
  EXPECT_TRUE(host_->Ranks().at(0).gives_up);
  EXPECT_EQ(host_->Ranks().size(), 2u);
}

TEST_F(LinkTest, WithoutASinkMemoryForCheckpointsIsRefused) {
  const auto link = Connect(0);
  const OwnedDescriptor memory(memfd_create("test", MFD_CLOEXEC));
  EXPECT_TRUE(absl::IsFailedPrecondition(link->OfferArea(memory.get())));
  EXPECT_EQ(link->Poll(), absl::OkStatus()) << "the link stays";
}

// A peer that sends what it likes.
class RawPeerTest : public LinkTest {
 protected:
  RawPeerTest() : socket_(OwnedDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
    const auto name = SocketName(host_->address());
    EXPECT_EQ(
        connect(socket_.descriptor(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name), 0);
  }
  // The outcome of the next message from the host.
  absl::Status Answer() {
    link::v1::ToRank message;
    absl::Status status;
    while (status.ok() && message.message_case() != link::v1::ToRank::kWelcome) {
      status = socket_.Send();
      if (status.ok()) {
        status = socket_.Receive(
            [&](absl::string_view bytes) { return ParseLinkMessage(bytes, message); });
      }
    }
    return message.has_welcome() ? StatusOf(message.welcome()) : status;
  }

  LinkSocket socket_;
};

TEST_F(RawPeerTest, AnotherVersionIsRefusedNamingBoth) {
  OwnedDescriptor memory;
  const auto page = WaitingPage::Create(memory);
  ASSERT_TRUE(page.ok()) << page.status();
  link::v1::ToDaemon message;
  message.mutable_hello()->set_version(kLinkVersion + 1);
  message.mutable_hello()->set_attempt(3);
  socket_.Queue(message, std::move(memory));
  const absl::Status status = Answer();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(kLinkVersion + 1, " is not ", kLinkVersion)));
}

TEST_F(RawPeerTest, AHelloWithoutAPageIsRefused) {
  link::v1::ToDaemon message;
  message.mutable_hello()->set_version(kLinkVersion);
  message.mutable_hello()->set_attempt(3);
  socket_.Queue(message);
  const absl::Status status = Answer();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("hello.page"));
}

TEST_F(RawPeerTest, AReportBeforeTheHelloEndsTheLink) {
  link::v1::ToDaemon message;
  message.mutable_report();
  socket_.Queue(message);
  EXPECT_TRUE(absl::IsInvalidArgument(Answer()));
}

TEST_F(RawPeerTest, BytesOfAnotherProtocolEndTheLink) {
  const std::string request = "HTTP/1.1 200 OK";
  ASSERT_EQ(send(socket_.descriptor(), request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  const absl::Status status = Answer();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("length: "));
}

}  // namespace
}  // namespace nibble
