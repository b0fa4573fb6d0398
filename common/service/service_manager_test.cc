#include "common/service/service_manager.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

// systemd's side: a bound datagram socket.
class Manager {
 public:
  // `name` begins with / or @.
  explicit Manager(std::string name)
      : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (name[0] == '@') name[0] = '\0';
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  }

  // The next message; empty: there is none.
  std::string Next() {
    std::array<char, 256> bytes = {};
    const ssize_t size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    return size <= 0 ? "" : std::string(bytes.data(), static_cast<size_t>(size));
  }

 private:
  OwnedDescriptor socket_;
};

class ServiceManagerTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }
  static void Set(const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  const std::string name_ = absl::StrCat("@nibble-service-manager-test-", getpid());
  const ServiceManager::Clock::time_point start_{seconds(1000)};
};

TEST_F(ServiceManagerTest, NothingIsSentWithoutSystemd) {
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_FALSE(service->present());
  EXPECT_TRUE(service->Ready("text").ok());
  EXPECT_TRUE(service->Alive(start_).ok());
  EXPECT_TRUE(service->Stopping().ok());
}

TEST_F(ServiceManagerTest, StartAndStopAreReported) {
  Manager manager(name_);
  Set("NOTIFY_SOCKET", name_);
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok()) << service.status();
  ASSERT_TRUE(service->Ready("3 slots").ok());
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=3 slots");
  ASSERT_TRUE(service->Stopping().ok());
  EXPECT_EQ(manager.Next(), "STOPPING=1");
}

TEST_F(ServiceManagerTest, ASocketMayBeAPath) {
  const std::string path = absl::StrCat("/tmp/nibble-notify-", getpid());
  Manager manager(path);
  Set("NOTIFY_SOCKET", path);
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok()) << service.status();
  ASSERT_TRUE(service->Stopping().ok());
  EXPECT_EQ(manager.Next(), "STOPPING=1");
  unlink(path.c_str());
}

TEST_F(ServiceManagerTest, TheWatchdogHearsOfTheServiceThreeTimesPerInterval) {
  Manager manager(name_);
  Set("NOTIFY_SOCKET", name_);
  Set("WATCHDOG_USEC", "30000000");
  Set("WATCHDOG_PID", absl::StrCat(getpid()));
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_EQ(service->watchdog(), seconds(30));
  int sent = 0;
  for (int second = 0; second < 30; ++second) {
    ASSERT_TRUE(service->Alive(start_ + seconds(second)).ok());
    const std::string message = manager.Next();
    if (message.empty()) continue;
    EXPECT_EQ(message, "WATCHDOG=1");
    ++sent;
  }
  EXPECT_EQ(sent, 3);
}

TEST_F(ServiceManagerTest, TheWatchdogOfAnotherProcessIsNotItsOwn) {
  Manager manager(name_);
  Set("NOTIFY_SOCKET", name_);
  Set("WATCHDOG_USEC", "30000000");
  Set("WATCHDOG_PID", "1");
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok()) << service.status();
  ASSERT_TRUE(service->Alive(start_).ok());
  EXPECT_EQ(manager.Next(), "");
}

TEST_F(ServiceManagerTest, ProcessesStartedLaterDoNotReport) {
  Manager manager(name_);
  Set("NOTIFY_SOCKET", name_);
  Set("WATCHDOG_USEC", "1000000");
  Set("WATCHDOG_PID", absl::StrCat(getpid()));
  ASSERT_TRUE(ServiceManager::FromEnvironment().ok());
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(getenv(name), nullptr) << name;
  }
}

TEST_F(ServiceManagerTest, MalformedVariablesAreNamed) {
  Set("NOTIFY_SOCKET", "relative");
  EXPECT_THAT(std::string(ServiceManager::FromEnvironment().status().message()),
              HasSubstr("NOTIFY_SOCKET: 'relative'"));
  Set("NOTIFY_SOCKET", name_);
  Set("WATCHDOG_USEC", "soon");
  EXPECT_THAT(std::string(ServiceManager::FromEnvironment().status().message()),
              HasSubstr("WATCHDOG_USEC: 'soon'"));
}

TEST_F(ServiceManagerTest, AManagerThatIsGoneIsAnError) {
  Set("NOTIFY_SOCKET", name_);
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_FALSE(service->Ready("text").ok());
}

}  // namespace
}  // namespace nibble
