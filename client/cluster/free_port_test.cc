#include "client/cluster/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(FreePortTest, APortThatIsListenedOnIsNotFreeUntilItIsClosed) {
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(file, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(file, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(file, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_FALSE(IsPortFree(port));
  close(file);
  EXPECT_TRUE(IsPortFree(port));
}

TEST(FreePortTest, TheChosenPortIsFreeAndBelowThoseOfOutgoingConnections) {
  int first = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  if (!(range >> first) || first <= 1024) GTEST_SKIP() << "every port is for connections here";
  const auto port = ChooseFreePort();
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_LT(*port, first);
  EXPECT_GE(*port, 1024);
  EXPECT_TRUE(IsPortFree(*port));
}

}  // namespace
}  // namespace nibble
