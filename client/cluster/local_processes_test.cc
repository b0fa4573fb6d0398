#include "client/cluster/local_processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
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
  EXPECT_TRUE(IsListening(port));
  close(file);
  EXPECT_TRUE(IsPortFree(port));
  EXPECT_FALSE(IsListening(port));
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

TEST(CardsOfWorkerTest, WorkersShareNoCard) {
  EXPECT_EQ(CardsOfWorker(1, 2, ""), "0,1");
  EXPECT_EQ(CardsOfWorker(2, 2, ""), "2,3");
  EXPECT_EQ(CardsOfWorker(1, 1, "5,GPU-a, 7"), "5");
  EXPECT_EQ(CardsOfWorker(3, 1, "5,GPU-a, 7"), "7");
}

TEST(CardsOfWorkerTest, WithTooFewVisibleCardsTheRestIsMissing) {
  EXPECT_EQ(CardsOfWorker(2, 2, "4,5,6"), "6");
  EXPECT_EQ(CardsOfWorker(3, 2, "4,5,6"), "");
}

TEST(LogTailTest, ItIsTheLastWholeLines) {
  const std::string path = testing::TempDir() + "/tail.log";
  EXPECT_EQ(LogTail(path + ".none"), "(cannot be read)");
  std::ofstream(path) << "";
  EXPECT_EQ(LogTail(path), "(is empty)");
  std::ofstream(path) << "first\nlast\n";
  EXPECT_EQ(LogTail(path), "first\nlast");
  std::ofstream many(path);
  for (int i = 0; i < 1000; ++i) many << absl::StrCat("line ", i, "\n");
  many.close();
  const std::string tail = LogTail(path);
  EXPECT_EQ(std::count(tail.begin(), tail.end(), '\n'), 11);
  EXPECT_EQ(tail.substr(0, tail.find('\n')), "line 988");
  EXPECT_EQ(tail.substr(tail.rfind('\n') + 1), "line 999");
}

}  // namespace

}  // namespace nibble
