#include "common/process/host.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(HostTest, TheProcessorsNameIsThatOfTheFirst) {
  EXPECT_EQ(ProcessorName("processor\t: 0\nmodel\t\t: 143\nmodel name\t: Xeon 8480+ \nflags\t: a\n"
                          "processor\t: 1\nmodel name\t: other\n"),
            "Xeon 8480+");
  EXPECT_EQ(ProcessorName("CPU part\t: 0xd40\n"), "");
}

TEST(HostTest, TheTextHasTheThreadsAlsoWithoutAName) {
  EXPECT_EQ(ProcessorText({.name = "a", .processor = "Xeon", .threads = 2}), "Xeon, 2 threads");
  EXPECT_EQ(ProcessorText({.name = "a", .threads = 1}), "1 thread");
}

TEST(HostTest, ThisHostHasANameAndThreads) {
  const HostDescription host = DescribeHost();
  EXPECT_FALSE(host.name.empty());
  EXPECT_GE(host.threads, 1);
}

}  // namespace
}  // namespace nibble
