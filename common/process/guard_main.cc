// guard PROGRAM ARGUMENTS…: runs a test that starts processes which may outlive it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "common/process/guard_testing.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s PROGRAM ARGUMENTS...\n", argv[0]);
    return 2;
  }
  nibble::process_testing::GuardProcesses();
  (void)execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return EXIT_FAILURE;
}
