// For tests: behaves like one rank of a trainer towards its daemon, without training. It prints its
// process id on the first line, reports a step every few milliseconds, pauses and stops on command,
// and hangs before the step that NIBBLE_TEST_HANG_AT names. Before that of NIBBLE_TEST_WAIT_AT it
// waits as in a collective, and stands by once it is asked to give up.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "worker/link/rank_link.h"

namespace {

constexpr int kStopped = 101;
constexpr int kPeer = 6;
constexpr std::chrono::milliseconds kStep(5);
constexpr std::chrono::seconds kPause(60);

std::string Argument(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  const char* const hang = std::getenv("NIBBLE_TEST_HANG_AT");
  const int64_t hang_at = hang == nullptr ? -1 : std::atoll(hang);
  const char* const wait = std::getenv("NIBBLE_TEST_WAIT_AT");
  const int64_t wait_at = wait == nullptr ? -1 : std::atoll(wait);
  const std::string rank = Argument(argc, argv, "--rank");
  auto link =
      nibble::RankLink::Connect({.address = Argument(argc, argv, "--link"),
                                 .rank = static_cast<int32_t>(std::atoi(rank.c_str())),
                                 .attempt = std::atoll(Argument(argc, argv, "--attempt").c_str())});
  if (!link.ok()) {
    std::fprintf(stderr, "%s\n", link.status().ToString().c_str());
    return 1;
  }
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  nibble::link::v1::RankReport report;
  nibble::v1::RevisionStart& begun = *report.add_begun();
  begun.set_revision(1);
  begun.set_first_step(0);
  while (true) {
    absl::Status status = (*link)->Poll();
    while (status.ok() && (*link)->command().command() == nibble::v1::GANG_COMMAND_PAUSE) {
      report.set_activity(nibble::link::v1::RANK_ACTIVITY_PAUSED);
      (*link)->Report(report);
      status = (*link)->WaitForChange(kPause);
    }
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
    if ((*link)->command().command() == nibble::v1::GANG_COMMAND_STOP) return kStopped;
    if (report.next_step() == hang_at) pause();
    if (report.next_step() == wait_at) {
      (*link)->page().Enter("AllGather", 1);
      while (!(*link)->page().MustGiveUp()) std::this_thread::sleep_for(kStep);
      (*link)->page().Leave();
      std::fprintf(stderr, "%s\n", (*link)->StandBy("gave up", kPause).status().ToString().c_str());
      return kPeer;
    }
    std::this_thread::sleep_for(kStep);
    report.set_activity(nibble::link::v1::RANK_ACTIVITY_STEPS);
    nibble::v1::StepSample& sample = *report.mutable_sample();
    sample.set_step(report.next_step());
    sample.set_revision(1);
    report.set_next_step(report.next_step() + 1);
    sample.set_loss(1.0 / static_cast<double>(report.next_step()));
    report.set_checkpoint_request((*link)->command().checkpoint_request());
    (*link)->Report(report);
  }
}
