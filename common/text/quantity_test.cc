#include "common/text/quantity.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(QuantityTest, BytesHaveDecimalAndBinaryPrefixes) {
  EXPECT_EQ(ParseByteCount("141GB").value(), 141000000000);
  EXPECT_EQ(ParseByteCount("1.5 kB").value(), 1500);
  EXPECT_EQ(ParseByteCount("2KiB").value(), 2048);
  EXPECT_EQ(ParseByteCount("80GiB").value(), int64_t{80} << 30);
  EXPECT_EQ(ParseByteCount("7B").value(), 7);
}

TEST(QuantityTest, ABitIsAnEighthOfAByte) {
  EXPECT_DOUBLE_EQ(ParseByteRate("400Gb/s").value(), 50e9);
  EXPECT_DOUBLE_EQ(ParseByteRate("350GB/s").value(), 350e9);
  EXPECT_DOUBLE_EQ(ParseByteRate("3 GiB/s").value(), 3.0 * (int64_t{1} << 30));
}

TEST(QuantityTest, OperationsPerSecondHaveTwoSpellings) {
  EXPECT_DOUBLE_EQ(ParseFlopRate("540TFLOP/s").value(), 540e12);
  EXPECT_DOUBLE_EQ(ParseFlopRate("1.2 PFLOPS").value(), 1.2e15);
  EXPECT_DOUBLE_EQ(ParseFlopRate("7FLOP/s").value(), 7);
}

TEST(QuantityTest, OtherTextIsRefusedWithAnExample) {
  for (const char* text : {"", "141", "GB", "141gb", "141G", "-1GB", "0GB", "1e3GB", "KB", "1KB",
                           "inf GB", "9999999999PB", "0.1B", "141GB/s"}) {
    EXPECT_EQ(ParseByteCount(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  for (const char* text : {"", "350", "350GB", "0GB/s", "350GBps"}) {
    EXPECT_EQ(ParseByteRate(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  for (const char* text : {"540", "540T", "540TiFLOP/s", "540TFLOP"}) {
    EXPECT_EQ(ParseFlopRate(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(std::string(ParseByteCount("141").status().message()),
            "'141' is not a number of bytes, such as 141GB or 131.3GiB");
}

}  // namespace
}  // namespace nibble
