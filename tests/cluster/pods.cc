#include "tests/cluster/pods.h"

#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

// terminationGracePeriodSeconds of the coordinator; of workers what drain.sh leaves.
constexpr std::chrono::seconds kTerminationGrace(60);

void RunHook(const ClusterBed& bed, const std::string& hook, const std::string& worker) {
  const std::string client = std::filesystem::absolute(NibbleProgram()).parent_path().string();
  const ShellResult ran = Shell(
      absl::StrCat("PATH=", client, ":$PATH POD_NAME=", worker, " NIBBLE_SERVER=", bed.address(),
                   " NIBBLE_DRAIN_SECONDS=", kPatience.count(), " sh ",
                   BuiltProgram("deploy/kubernetes/base/hooks/" + hook), " 2>&1"));
  EXPECT_EQ(ran.code, 0) << hook << " of " << worker << ": " << ran.text;
}

}  // namespace

void StopPod(ClusterBed& bed, const std::string& role) {
  if (role != kCoordinatorRole) RunHook(bed, "drain.sh", role);
  bed.Stop(role, kTerminationGrace);
}

void StartPod(ClusterBed& bed, const std::string& role) {
  bed.Restart(role);
  if (role != kCoordinatorRole) RunHook(bed, "return.sh", role);
}

}  // namespace nibble
