// The main of test programs that start processes which may outlive them.
#include "common/process/guard_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  nibble::process_testing::GuardProcesses();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
