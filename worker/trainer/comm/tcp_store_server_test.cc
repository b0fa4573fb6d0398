#include "worker/trainer/comm/tcp_store_server.h"

#include <string>

#include "common/listen_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/comm/rendezvous.h"

namespace nibble::tcp_store {
namespace {

using testing::HasSubstr;

TEST(TcpStoreFrameTest, RequestReadsBackAsWritten) {
  const std::string frame = EncodeRequest(Operation::kSet, "key", "value", 0x123456789a);
  ASSERT_EQ(frame.size(), kRequestHead + 8);
  EXPECT_EQ(frame.substr(kRequestHead), "keyvalue");
  const absl::StatusOr<RequestHead> head = ParseRequest(frame.substr(0, kRequestHead));
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->operation, Operation::kSet);
  EXPECT_EQ(head->key_bytes, 3u);
  EXPECT_EQ(head->value_bytes, 5u);
  EXPECT_EQ(head->wait_ms, 0x123456789au);
}

TEST(TcpStoreFrameTest, ResponseCarriesAValueOrAStatus) {
  std::string frame = EncodeResponse(absl::OkStatus(), "value");
  absl::StatusOr<ResponseHead> head = ParseResponse(frame.substr(0, kResponseHead));
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->code, absl::StatusCode::kOk);
  EXPECT_EQ(frame.substr(kResponseHead), "value");
  frame = EncodeResponse(absl::NotFoundError("why"), "never sent");
  head = ParseResponse(frame.substr(0, kResponseHead));
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->code, absl::StatusCode::kNotFound);
  EXPECT_EQ(frame.substr(kResponseHead), "why");
}

// Bytes of the format, so that programs of different builds understand each other.
TEST(TcpStoreFrameTest, LayoutIsTheDocumentedOne) {
  EXPECT_EQ(
      EncodeRequest(Operation::kGet, "k", "", 1),
      std::string("NBRV\x01\x02\x01\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00k", 21));
  EXPECT_EQ(EncodeResponse(absl::OkStatus(), "v"),
            std::string("NBRV\x01\x00\x00\x00\x01\x00\x00\x00v", 13));
}

TEST(TcpStoreFrameTest, DamagedRequestIsRefusedWithTheReason) {
  const auto refusal = [](size_t at, char byte) {
    std::string head = EncodeRequest(Operation::kGet, "k", "", 1).substr(0, kRequestHead);
    head[at] = byte;
    return std::string(ParseRequest(head).status().message());
  };
  EXPECT_THAT(refusal(0, 'X'), HasSubstr("magic"));
  EXPECT_THAT(refusal(4, 2), HasSubstr("version 2, not 1"));
  EXPECT_THAT(refusal(5, 3), HasSubstr("operation 3"));
  EXPECT_THAT(refusal(6, 0), HasSubstr("key of 0 bytes, not in [1, 256]"));
  EXPECT_THAT(refusal(7, 2), HasSubstr("key of 513 bytes"));
  EXPECT_THAT(refusal(8, 1), HasSubstr("value of 1 bytes, above 0"));  // a Get has none
  EXPECT_THAT(std::string(ParseRequest("short").status().message()), HasSubstr("head of 5 bytes"));
}

TEST(TcpStoreFrameTest, DamagedResponseIsRefused) {
  for (const size_t at : {0, 4, 5, 6, 7, 11}) {
    std::string head = EncodeResponse(absl::OkStatus(), "v").substr(0, kResponseHead);
    head[at] = '\x7f';
    EXPECT_TRUE(absl::IsInvalidArgument(ParseResponse(head).status())) << "byte " << at;
  }
}

TEST(TcpStoreFrameTest, AddressesAreReadOrRefused) {
  EXPECT_EQ(ParseListenAddress("address", "host:80")->host, "host");
  EXPECT_EQ(ParseListenAddress("address", "host:80")->port, 80);
  EXPECT_EQ(ParseListenAddress("address", "[::1]:0")->host, "::1");
  for (const char* bad :
       {"", "host", "host:", ":80", "host:x", "host:65536", "host:-1", "::1:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseListenAddress("address", bad).status())) << bad;
  }
}

}  // namespace
}  // namespace nibble::tcp_store
