// For tests: behaves like one rank of a trainer towards its daemon, without training. It prints its
// process id on the first line, reports a step every few milliseconds, pauses and stops on command,
// and hangs before the step that NIBBLE_TEST_HANG_AT names.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "worker/trainer/link/daemon_link.h"

namespace {

constexpr int kStopped = 101;
constexpr std::chrono::milliseconds kStep(5);
constexpr std::chrono::seconds kStand(60);

int64_t Argument(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return std::atoll(argv[i + 1]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const address = std::getenv(nibble::kDaemonLinkVariable);
  const char* const hang = std::getenv("NIBBLE_TEST_HANG_AT");
  const int64_t hang_at = hang == nullptr ? -1 : std::atoll(hang);
  const auto rank = static_cast<int32_t>(Argument(argc, argv, "--rank"));
  auto link = nibble::DaemonLink::Connect({.address = address == nullptr ? "" : address,
                                           .rank = rank,
                                           .attempt = Argument(argc, argv, "--attempt")});
  if (!link.ok()) {
    std::fprintf(stderr, "%s\n", link.status().ToString().c_str());
    return 1;
  }
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  nibble::RankNews news = {
      .doing = nibble::RankNews::Doing::kSteps, .revision = 1, .begun = {{1, 0}}};
  while (true) {
    absl::StatusOr<nibble::ControlWord> word = (*link)->Poll();
    while (word.ok() && word->command == nibble::ControlWord::Command::kPause) {
      news.doing = nibble::RankNews::Doing::kStanding;
      (*link)->Report(news);
      word = (*link)->WaitForChange(kStand);
    }
    if (!word.ok()) {
      std::fprintf(stderr, "%s\n", word.status().ToString().c_str());
      return 1;
    }
    if (word->command == nibble::ControlWord::Command::kStop) return kStopped;
    if (news.next_step == hang_at) pause();
    std::this_thread::sleep_for(kStep);
    news.doing = nibble::RankNews::Doing::kSteps;
    news.has_sample = true;
    news.step = news.next_step++;
    news.loss = 1.0 / static_cast<double>(news.next_step);
    news.checkpoint_request = word->checkpoint_request;
    (*link)->Report(news);
  }
}
