#include "client/remote/server_address.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class ServerAddressTest : public testing::Test {
 protected:
  ServerAddressTest() {
    std::filesystem::remove_all(home_);
    setenv("NIBBLE_HOME", home_.c_str(), 1);
    unsetenv("NIBBLE_SERVER");
  }

  void LeaveAddress(const std::string& text) {
    std::filesystem::create_directories(home_ + "/cluster");
    std::ofstream(home_ + "/cluster/address") << text;
  }

  const std::string home_ = testing::TempDir() + "server_address_home";
};

TEST_F(ServerAddressTest, TheFlagComesBeforeTheVariableBeforeTheClusterBeforeTheUsual) {
  EXPECT_EQ(*FindServerAddress(""), kUsualServer);
  LeaveAddress("127.0.0.1:4001\n");
  EXPECT_EQ(*FindServerAddress(""), "127.0.0.1:4001");
  setenv("NIBBLE_SERVER", "train.example:4002", 1);
  EXPECT_EQ(*FindServerAddress(""), "train.example:4002");
  EXPECT_EQ(*FindServerAddress("[::1]:4003"), "[::1]:4003");
}

TEST_F(ServerAddressTest, WithoutAHomeOfItsOwnItIsInTheUsers) {
  unsetenv("NIBBLE_HOME");
  setenv("HOME", home_.c_str(), 1);
  std::filesystem::create_directories(home_ + "/.nibble/cluster");
  std::ofstream(home_ + "/.nibble/cluster/address") << "127.0.0.1:4004";
  EXPECT_EQ(*FindServerAddress(""), "127.0.0.1:4004");
}

TEST_F(ServerAddressTest, WhatIsNoAddressIsRefusedWithItsSource) {
  EXPECT_THAT(FindServerAddress("localhost").status().message(),
              HasSubstr("--server: 'localhost'"));
  EXPECT_THAT(FindServerAddress("localhost:70000").status().message(), HasSubstr("1 to 65535"));
  LeaveAddress("garbage");
  EXPECT_THAT(FindServerAddress("").status().message(), HasSubstr("/cluster/address: 'garbage'"));
  setenv("NIBBLE_SERVER", ":7700", 1);
  EXPECT_THAT(FindServerAddress("").status().message(), HasSubstr("NIBBLE_SERVER: ':7700'"));
}

}  // namespace
}  // namespace nibble
