#include "common/process/standard_descriptors.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#include "gtest/gtest.h"

namespace nibble {
namespace {

// Runs `check` in a child process without these descriptors; its result is the exit code.
template <class Check>
int InChildWithout(std::initializer_list<int> closed, Check check) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int fd : closed) (void)close(fd);
    ReserveStandardDescriptors();
    _exit(check());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardDescriptorsTest, AFileOpenedLaterIsNotStandardOutput) {
  EXPECT_EQ(InChildWithout({0, 1, 2},
                           [] {
                             const int fd = open("/dev/null", O_WRONLY);
                             return fd > 2 ? 0 : 1;
                           }),
            0);
}

TEST(StandardDescriptorsTest, UsingAClosedOneStillFails) {
  EXPECT_EQ(InChildWithout({0, 1},
                           [] {
                             char byte = 0;
                             if (read(0, &byte, 1) != -1 || errno != EBADF) return 1;
                             if (write(1, &byte, 1) != -1 || errno != EBADF) return 2;
                             return 0;
                           }),
            0);
}

TEST(StandardDescriptorsTest, OpenOnesAreLeftAlone) {
  EXPECT_EQ(InChildWithout({},
                           [] {
                             const int flags = fcntl(1, F_GETFL);
                             ReserveStandardDescriptors();
                             return fcntl(1, F_GETFL) == flags ? 0 : 1;
                           }),
            0);
}

}  // namespace
}  // namespace nibble
