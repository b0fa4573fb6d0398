// A rank that is killed, stopped or cut off in the middle of any collective, a hundred times: all
// others end with an error that names it.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/comm/gloo_collective.h"
#include "worker/trainer/comm/rank_processes_testing.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::StartsWith;

constexpr int kWorld = 3;
constexpr int kLosses = 100;
constexpr milliseconds kNever = std::chrono::minutes(1);
// Of ranks that are stopped: more than a loaded machine keeps two ranks apart.
constexpr milliseconds kSilence{1000};

enum class Loss { kKilled, kStopped, kCutOff };
const char* NameOf(Loss loss) {
  return loss == Loss::kKilled ? "killed" : loss == Loss::kStopped ? "stopped" : "cut off";
}

const std::pair<const char*, std::function<absl::Status(Collective&)>> kCollectives[] = {
    {"AllGather",
     [](Collective& group) {
       constexpr int64_t kCount = 1 << 18;
       std::vector<float> in(kCount), out(kCount * kWorld);
       return group.AllGather(in.data(), out.data(), kCount * 4);
     }},
    {"ReduceScatter",
     [](Collective& group) {
       constexpr int64_t kCount = 1 << 18;
       std::vector<float> in(kCount * kWorld), out(kCount);
       return group.ReduceScatter(in.data(), out.data(), kCount);
     }},
    {"AllReduce",
     [](Collective& group) {
       std::vector<float> x(10'000);
       return group.AllReduce(x.data(), 10'000, Reduction::kMax);
     }},
    {"Broadcast",
     [](Collective& group) {
       std::vector<char> data(1 << 20);
       // Its root needs an answer of nobody.
       absl::Status status = group.Broadcast(data.data(), 1 << 20, 0);
       if (status.ok()) status = group.Broadcast(data.data(), 1 << 20, 1);
       return status;
     }},
    {"Barrier", [](Collective& group) { return group.Barrier(); }},
    {"ExchangeSmall",
     [](Collective& group) {
       const uint64_t word = 1;
       return group.ExchangeSmall({&word, 1}).status();
     }},
};

// Ends every connection of this process.
void CutConnections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename();
    int fd = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), fd).ec != std::errc()) continue;
    struct stat info = {};
    if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)) (void)shutdown(fd, SHUT_RDWR);
  }
}

struct Case {
  int collective, victim, before;  // operations that succeed before
  Loss loss;
  uint64_t turns;  // of a loop, from there to the loss
};

Case Draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  return {.collective = static_cast<int>(seed % std::size(kCollectives)),
          .victim = static_cast<int>(random() % kWorld),
          .before = static_cast<int>(random() % 4),
          .loss = static_cast<Loss>(seed / std::size(kCollectives) % 3),
          .turns = random() % 2'000'000};
}

void Lose(const Case& of) {
  std::thread([of] {
    std::atomic<uint64_t> turn = 0;
    while (turn.fetch_add(1) < of.turns) {
    }
    if (of.loss == Loss::kCutOff) return CutConnections();
    raise(of.loss == Loss::kKilled ? SIGKILL : SIGSTOP);
  }).detach();
}

// The ranks that an error names as the cause, as in "AllGather #6 on rank 1 of 3: no answer from
// ranks 0, 2 within 1000 ms".
std::set<int> NamedBy(const std::string& message) {
  std::set<int> ranks;
  static const std::regex kList("ranks? ([0-9]+(?:(?:, | and )[0-9]+)*)");
  static const std::regex kNumber("[0-9]+");
  const std::string cause = message.substr(std::min(message.find(": "), message.size()));
  for (std::sregex_iterator list(cause.begin(), cause.end(), kList), end; list != end; ++list) {
    const std::string numbers = (*list)[1];
    for (std::sregex_iterator n(numbers.begin(), numbers.end(), kNumber); n != end; ++n) {
      ranks.insert(std::stoi(n->str()));
    }
  }
  return ranks;
}

TEST(GlooLossTest, ARankLostAnyhowInAnyCollectiveIsNamedByAllOthersAHundredTimes) {
  for (uint64_t seed = 0; seed < kLosses; ++seed) {
    const Case of = Draw(seed);
    const auto& [name, operation] = kCollectives[of.collective];
    SCOPED_TRACE(
        absl::StrCat("seed ", seed, ": rank ", of.victim, " ", NameOf(of.loss), " in ", name));
    const RendezvousProcess rendezvous;
    const SharedCounter victim_pid, named_alone;
    Gate ended[kWorld];
    const std::vector<RankOutcome> outcomes = RunRanks(kWorld, [&](int rank) {
      auto joined = CreateGloo({.rank = rank,
                                .world = kWorld,
                                .rendezvous = rendezvous.address(),
                                .timeout = of.loss == Loss::kStopped ? kSilence : kNever});
      ASSERT_TRUE(joined.ok()) << joined.status();
      Collective& group = **joined;
      if (rank == of.victim) victim_pid.Add(getpid());
      ASSERT_TRUE(group.Barrier().ok());
      absl::Status status;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; status.ok(); ++i) {
        if (rank == of.victim && i == of.before) Lose(of);
        status = operation(group);
      }
      if (rank == of.victim) return;  // cut off: it cannot know which side was
      EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), StartsWith(name));
      const std::set<int> named = NamedBy(std::string(status.message()));
      EXPECT_TRUE(named.contains(of.victim)) << status;
      if (named.size() == 1) named_alone.Add(1);
      // Without the timeout of those that answer.
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kNever);
      ended[rank].Open();
      const int first = of.victim == 0 ? 1 : 0, last = kWorld - 1 - (of.victim == kWorld - 1);
      if (rank != first) return;
      EXPECT_TRUE(ended[last].Wait(kNever));
      // A process that is stopped does not end by itself.
      if (of.loss == Loss::kStopped) kill(static_cast<pid_t>(victim_pid.value()), SIGKILL);
    });
    // A rank that is one collective further waits for the other one, too.
    EXPECT_GE(named_alone.value(), 1);
    for (int rank = 0; rank < kWorld; ++rank) {
      const bool dies = rank == of.victim && of.loss != Loss::kCutOff;
      EXPECT_EQ(outcomes[rank].signal, dies ? SIGKILL : 0) << "rank " << rank;
      EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank;
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace nibble
