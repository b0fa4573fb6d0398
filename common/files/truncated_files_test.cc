#include "common/files/truncated_files.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(TruncatedFilesDeathTest, AnyOtherBusErrorEndsTheProcessAsBefore) {
  EXPECT_EXIT(
      {
        ReportTruncatedFiles("program: ", 3);
        raise(SIGBUS);
        raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace nibble
