#include "client/cluster/cluster_command.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "client/cluster/cluster_files.h"
#include "client/shell/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Outcome Status(const std::string& directory, const std::string& print) {
  return RunCommand(AddClusterCommand, {"cluster", "status", "--state", directory, "-o", print});
}

TEST(ClusterCommandTest, StatusIsATableJsonOrYaml) {
  const ClusterPaths paths = {.directory = testing::TempDir() + "ended"};
  std::filesystem::create_directories(paths.directory);
  ASSERT_EQ(WriteClusterRecord(paths, {.shape = {.workers = 1, .port = 7700}}), absl::OkStatus());
  const Outcome table = Status(paths.directory, "table");
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("worker-1"));
  const Outcome json = Status(paths.directory, "json");
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto status = nlohmann::ordered_json::parse(json.out);
  EXPECT_EQ(status["serves"], false);
  EXPECT_EQ(status["processes"][1]["role"], "worker-1");
  EXPECT_EQ(JsonOfYaml(Status(paths.directory, "yaml").out), status);
}

TEST(ClusterCommandTest, WithoutAClusterStatusIsNotFoundAndDownDoesNothing) {
  const std::string nowhere = testing::TempDir() + "nowhere";
  const Outcome status = Status(nowhere, "table");
  EXPECT_EQ(status.exit_code, 102);
  EXPECT_THAT(status.out, IsEmpty());
  EXPECT_THAT(status.err, HasSubstr("nibble cluster status: there is no cluster in " + nowhere));
  EXPECT_EQ(RunCommand(AddClusterCommand, {"cluster", "down", "--state", nowhere}).exit_code, 0);
}

}  // namespace

}  // namespace nibble
