#include "tests/cluster/other_coordinator.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/descriptor.h"
#include "common/process/spawn.h"
#include "gtest/gtest.h"

namespace nibble {

OtherCoordinator::OtherCoordinator(const ClusterBed& bed, const std::string& store,
                                   const Options& options)
    : log_(absl::StrCat(bed.root(), "/other-coordinator.log")) {
  std::vector<std::string> arguments = {
      TestPrograms().coordinator, "--store", store, "--cluster", "local", "--listen",
      options.address.empty() ? bed.address() : options.address, "--http", "", "--lease-ms",
      absl::StrCat(ClusterBed::kLease.count()), "--tick-ms", "20"};
  if (options.standby) arguments.push_back("--standby");
  arguments.insert(arguments.end(), options.flags.begin(), options.flags.end());
  const OwnedDescriptor errors(open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const absl::StatusOr<pid_t> pid = SpawnProcess(
      {.arguments = std::move(arguments), .error = errors.get(), .dies_with_thread = true});
  EXPECT_TRUE(pid.ok()) << pid.status();
  pid_ = pid.value_or(-1);
  if (!options.standby) return;
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Log(), "standby: "); }));
}

OtherCoordinator::~OtherCoordinator() {
  if (pid_ <= 0) return;
  (void)kill(pid_, SIGKILL);
  (void)waitpid(pid_, nullptr, 0);
}

int OtherCoordinator::Stop() {
  int status = -1;
  (void)kill(pid_, SIGTERM);
  (void)waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

std::string OtherCoordinator::Log() const {
  std::ifstream lines(log_);
  return {std::istreambuf_iterator<char>(lines), {}};
}

}  // namespace nibble
