// Launches this very program: with --role it plays a rank, without it runs the tests.
#include "worker/trainer/comm/launch_local.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/comm/gloo_collective.h"

namespace nibble {
namespace {

using testing::MatchesRegex;
using testing::StartsWith;

// The arguments of a launched rank.
struct Rank {
  std::string role, argument, rendezvous;
  int rank = -1;
  int world = -1;
};

Rank ReadCommandLine(int argc, char** argv) {
  Rank me;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--role") me.role = value;
    if (flag == "--argument") me.argument = value;
    if (flag == "--rendezvous") me.rendezvous = value;
    if (flag == "--rank") me.rank = std::atoi(value.c_str());
    if (flag == "--world") me.world = std::atoi(value.c_str());
  }
  return me;
}

[[noreturn]] void WaitForEver() {
  while (true) pause();
}

void Block(int signal, sigset_t* set) {
  (void)sigemptyset(set);
  (void)sigaddset(set, signal);
  (void)sigprocmask(SIG_BLOCK, set, nullptr);
}

// The process of one rank; returns its exit code.
int Play(const Rank& me) {
  if (me.role == "note") {
    std::ofstream(me.argument + "/" + std::to_string(me.rank))
        << me.rank << " " << me.world << " " << me.rendezvous;
    return 0;
  }
  if (me.role == "hold") {  // reports its start, then keeps the pipe open
    if (write(open(me.argument.c_str(), O_WRONLY), "x", 1) != 1) return 104;
    WaitForEver();
  }
  if (me.role == "leave a child") {  // which keeps the pipe open
    if (open(me.argument.c_str(), O_WRONLY) < 0) return 104;
    if (fork() == 0) WaitForEver();
    return 0;
  }
  // The others begin together, with their signals arranged.
  sigset_t term;
  if (me.role == "end on TERM") Block(SIGTERM, &term);
  if (me.role == "ignore TERM") (void)signal(SIGTERM, SIG_IGN);
  auto group = CreateGloo({.rank = me.rank, .world = me.world, .rendezvous = me.rendezvous});
  if (!group.ok()) return 100;
  int64_t sum = me.rank;
  if (!(*group)->AllReduce(&sum, 1, Reduction::kSum).ok()) return 101;
  if (sum != me.world * (me.world - 1) / 2) return 102;
  if (me.role == "meet") return 0;
  if (me.role == "end on TERM") {
    if (me.rank == 0) (void)kill(getppid(), SIGTERM);
    int taken = 0;
    return sigwait(&term, &taken) == 0 && taken == SIGTERM ? 0 : 103;
  }
  if (me.rank == 1) {
    if (me.role == "killed") (void)raise(SIGKILL);
    return 3;
  }
  WaitForEver();
}

LaunchResult Launch(int ranks, const std::string& role, const std::string& argument = "-",
                    std::chrono::milliseconds grace = std::chrono::minutes(1)) {
  const absl::StatusOr<LaunchResult> result = LaunchLocal(
      {.ranks = ranks, .arguments = {"--role", role, "--argument", argument}, .grace = grace});
  EXPECT_TRUE(result.ok()) << result.status();
  // Every child is reaped.
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  return result.ok() ? *result : LaunchResult();
}

// A pipe that ranks open by its path. It ends when the last process that holds it has ended.
class NamedPipe {
 public:
  NamedPipe() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr) << errno;
    EXPECT_EQ(mkfifo(path().c_str(), 0600), 0) << errno;
    in_ = open(path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(in_, 0) << errno;
  }
  ~NamedPipe() {
    (void)close(in_);
    std::filesystem::remove_all(directory_);
  }
  NamedPipe(const NamedPipe&) = delete;
  NamedPipe& operator=(const NamedPipe&) = delete;
  std::string path() const { return directory_ + "/pipe"; }
  // 1 for a byte, 0 at the end, -1 if neither comes.
  int Read() const {
    pollfd one = {in_, POLLIN, 0};
    char byte = 0;
    return poll(&one, 1, 60'000) == 1 ? static_cast<int>(read(in_, &byte, 1)) : -1;
  }

 private:
  std::string directory_ = testing::TempDir() + "/nibble-launch-XXXXXX";
  int in_ = -1;
};

TEST(LaunchLocalTest, EveryRankGetsItsNumberTheWorldAndOneRendezvous) {
  std::string notes = testing::TempDir() + "/nibble-launch-XXXXXX";
  ASSERT_NE(mkdtemp(notes.data()), nullptr) << errno;
  const LaunchResult result = Launch(3, "note", notes);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.Describe(), "all 3 ranks succeeded");
  std::string shared;
  for (int rank = 0; rank < 3; ++rank) {
    std::ifstream note(notes + "/" + std::to_string(rank));
    int me = -1, world = -1;
    std::string rendezvous;
    note >> me >> world >> rendezvous;
    EXPECT_EQ(me, rank);
    EXPECT_EQ(world, 3);
    EXPECT_THAT(rendezvous, StartsWith("served:127.0.0.1:"));
    EXPECT_TRUE(rank == 0 || rendezvous == shared) << rendezvous << " and " << shared;
    shared = rendezvous;
  }
  std::filesystem::remove_all(notes);
}

TEST(LaunchLocalTest, LaunchedRanksFormAGroup) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(Launch(ranks, "meet").ok()) << ranks;
}

TEST(LaunchLocalTest, KilledRankEndsTheOthers) {
  const LaunchResult result = Launch(3, "killed");
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(result.ranks[rank].signal, SIGTERM);
    EXPECT_TRUE(result.ranks[rank].stopped);
  }
  EXPECT_EQ(result.Describe(), "rank 1 was killed by signal 9 (Killed); ranks 0, 2 were stopped");
}

TEST(LaunchLocalTest, RankThatIgnoresTheRequestIsKilledAfterTheGrace) {
  const LaunchResult result = Launch(2, "ignore TERM", "-", std::chrono::milliseconds(50));
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.ranks[1].exit_code, 3);
  EXPECT_EQ(result.ranks[0].signal, SIGKILL);
  EXPECT_EQ(result.Describe(), "rank 1 ended with exit code 3; rank 0 was stopped");
}

TEST(LaunchLocalTest, SignalsOfTheLauncherReachEveryRank) {
  const LaunchResult result = Launch(3, "end on TERM");
  EXPECT_TRUE(result.ok()) << result.Describe();
  EXPECT_EQ(result.forwarded_signal, SIGTERM);
}

TEST(LaunchLocalTest, ChildrenOfARankEndWithIt) {
  const NamedPipe pipe;
  EXPECT_TRUE(Launch(2, "leave a child", pipe.path()).ok());
  EXPECT_EQ(pipe.Read(), 0) << "a child of a rank still holds the pipe";
}

TEST(LaunchLocalTest, RanksDieWithTheirLauncher) {
  const NamedPipe pipe;
  const pid_t launcher = fork();
  if (launcher == 0) {
    (void)Launch(2, "hold", pipe.path());
    _exit(1);
  }
  ASSERT_GT(launcher, 0);
  EXPECT_EQ(pipe.Read(), 1);
  EXPECT_EQ(pipe.Read(), 1);
  ASSERT_EQ(kill(launcher, SIGKILL), 0);
  EXPECT_EQ(pipe.Read(), 0) << "a rank outlived its launcher";
  EXPECT_EQ(waitpid(launcher, nullptr, 0), launcher);
}

TEST(LaunchLocalTest, ProgramThatCannotBeStartedIsNamedAndNoRankIsLeft) {
  const std::string too_long(1 << 20, 'x');  // for one argument
  const absl::Status status = LaunchLocal({.ranks = 2, .arguments = {"--role", too_long}}).status();
  EXPECT_THAT(std::string(status.message()), MatchesRegex("launching ranks: /.*: executing .*"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(LaunchLocalTest, NumberOfRanksIsChecked) {
  for (const int ranks : {0, -1, kMaxLocalRanks + 1}) {
    const absl::Status status = LaunchLocal({.ranks = ranks}).status();
    EXPECT_EQ(std::string(status.message()),
              "ranks = " + std::to_string(ranks) + " is not in [1, 256]");
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  const nibble::Rank me = nibble::ReadCommandLine(argc, argv);
  if (!me.role.empty()) return nibble::Play(me);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
