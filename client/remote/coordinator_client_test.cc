#include "client/remote/coordinator_client.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/remote/rpcs.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

TEST(DefaultClusterDirectoryTest, ItFollowsTheEnvironment) {
  ASSERT_EQ(setenv("HOME", "/home/ann", 1), 0);
  ASSERT_EQ(unsetenv("NIBBLE_HOME"), 0);
  EXPECT_EQ(DefaultClusterDirectory(), "/home/ann/.nibble/cluster");
  ASSERT_EQ(setenv("HOME", "", 1), 0);
  EXPECT_EQ(DefaultClusterDirectory(),
            std::string(getpwuid(geteuid())->pw_dir) + "/.nibble/cluster");
  ASSERT_EQ(setenv("NIBBLE_HOME", "/var/nibble", 1), 0);
  EXPECT_EQ(DefaultClusterDirectory(), "/var/nibble/cluster");
}

class ServerAddressTest : public testing::Test {
 protected:
  ServerAddressTest() {
    std::filesystem::remove_all(home_);
    setenv("NIBBLE_HOME", home_.c_str(), 1);
    unsetenv("NIBBLE_SERVER");
  }

  void WriteAddress(const std::string& text) {
    std::filesystem::create_directories(home_ + "/cluster");
    std::ofstream(home_ + "/cluster/address") << text;
  }

  const std::string home_ = testing::TempDir() + "server_address_home";
};

TEST_F(ServerAddressTest, TheFlagOverridesTheVariableTheLocalClusterAndTheDefault) {
  EXPECT_EQ(*FindServerAddress(""), kDefaultServer);
  WriteAddress("127.0.0.1:4001\n");
  EXPECT_EQ(*FindServerAddress(""), "127.0.0.1:4001");
  setenv("NIBBLE_SERVER", "train.example:4002", 1);
  EXPECT_EQ(*FindServerAddress(""), "train.example:4002");
  EXPECT_EQ(*FindServerAddress("[::1]:4003"), "[::1]:4003");
  EXPECT_EQ(*FindServerAddress("dns:///train.example:4003"), "dns:///train.example:4003");
}

TEST_F(ServerAddressTest, WithoutNibbleHomeTheClusterIsInTheUsersHome) {
  unsetenv("NIBBLE_HOME");
  setenv("HOME", home_.c_str(), 1);
  std::filesystem::create_directories(home_ + "/.nibble/cluster");
  std::ofstream(home_ + "/.nibble/cluster/address") << "127.0.0.1:4004";
  EXPECT_EQ(*FindServerAddress(""), "127.0.0.1:4004");
}

TEST_F(ServerAddressTest, InvalidAddressesAreRefusedWithTheirSource) {
  EXPECT_THAT(FindServerAddress("localhost").status().message(),
              HasSubstr("--server: 'localhost'"));
  EXPECT_THAT(FindServerAddress("localhost:70000").status().message(), HasSubstr("1 to 65535"));
  EXPECT_EQ(FindServerAddress("http://train.example:7700").status().message(),
            "--server: 'http://train.example:7700'; allowed: host:port with a port of 1 to 65535, "
            "without 'http://'");
  EXPECT_THAT(FindServerAddress("https://train.example").status().message(),
              HasSubstr("without 'https://'"));
  WriteAddress("garbage");
  EXPECT_THAT(FindServerAddress("").status().message(), HasSubstr("/cluster/address: 'garbage'"));
  WriteAddress("\n");
  EXPECT_THAT(FindServerAddress("").status().message(), HasSubstr("/cluster/address: ''"));
  setenv("NIBBLE_SERVER", ":7700", 1);
  EXPECT_THAT(FindServerAddress("").status().message(), HasSubstr("NIBBLE_SERVER: ':7700'"));
}

const google::protobuf::ServiceDescriptor& Service() {
  return *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "nibble.v1.Coordinator");
}

// Checks the types of the method that the constant names, and returns the name.
template <class Request, class Response>
std::string Checked(const Rpc<Request, Response>& rpc) {
  const auto* const method = Service().FindMethodByName(rpc.method);
  if (method == nullptr) {
    ADD_FAILURE() << rpc.method << " is not a method of the service";
    return rpc.method;
  }
  EXPECT_EQ(method->input_type()->full_name(), Request::descriptor()->full_name());
  EXPECT_EQ(method->output_type()->full_name(), Response::descriptor()->full_name());
  return rpc.method;
}

TEST(RpcsTest, EveryUnaryMethodOfTheServiceHasAConstantWithItsTypes) {
  const auto names = [](const auto&... rpcs) { return std::vector{Checked(rpcs)...}; };
  std::vector<std::string> unary;
  for (int i = 0; i < Service().method_count(); ++i) {
    const auto& method = *Service().method(i);
    if (!method.server_streaming()) unary.push_back(method.name());
  }
  EXPECT_THAT(
      names(kSubmitJob, kForkJob, kListJobs, kDescribeJob, kListJobEvents, kPauseJob, kResumeJob,
            kCheckpointJob, kCancelJob, kKillJob, kWaitJob, kSetJobPriority, kSetJobRestartPolicy,
            kGetJobMetrics, kGetRecipe, kSetRecipe, kRollbackRecipe, kDiffRecipe,
            kListRecipeRevisions, kListRecipePresets, kGetRecipeCost, kListCheckpoints,
            kDescribeCheckpoint, kVerifyCheckpoint, kExportCheckpoint, kPinCheckpoint,
            kUnpinCheckpoint, kDeleteCheckpoint, kListTrash, kRestoreCheckpoint, kListDeletions,
            kListOrphans, kAdoptJob, kRemoveOrphan, kListWorkers, kDescribeWorker, kDrainWorker,
            kUncordonWorker, kListQueues, kSetQueue, kDeleteQueue),
      UnorderedElementsAreArray(unary));
}

}  // namespace
}  // namespace nibble
