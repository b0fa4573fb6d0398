#include "server/service/wire.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  return details;
}

// The detail of this type, or a default one.
template <class Detail>
Detail Find(const grpc::Status& status) {
  Detail found;
  const google::rpc::Status details = DetailsOf(status);
  for (const auto& detail : details.details()) {
    if (!detail.Is<Detail>()) continue;
    EXPECT_TRUE(detail.UnpackTo(&found));
  }
  return found;
}

std::vector<std::string> FieldsOf(const std::string& message) {
  std::vector<std::string> fields;
  const auto bad = Find<google::rpc::BadRequest>(ToGrpc(absl::InvalidArgumentError(message)));
  for (const auto& violation : bad.field_violations()) fields.push_back(violation.field());
  return fields;
}

TEST(GrpcStatusTest, FieldsOfARequestAndOfItsSpecAreNamed) {
  EXPECT_THAT(FieldsOf("scheduling.allowed_ranks[2]: 0; allowed: 1 to 8"),
              ElementsAre("scheduling.allowed_ranks[2]"));
  EXPECT_THAT(FieldsOf("line 3: training.batch: 0; allowed: 1 and more"),
              ElementsAre("spec_yaml.training.batch"));
  EXPECT_THAT(FieldsOf("line 7: a tab cannot begin a line"), ElementsAre("spec_yaml"));
  EXPECT_THAT(FieldsOf("2 problems:\n  line 2: model: 'x' is none\n  line 4: data.train: empty"),
              ElementsAre("spec_yaml.model", "spec_yaml.data.train"));
  EXPECT_THAT(FieldsOf("the request, 3 bytes, is not a valid nibble.v1.Job"), IsEmpty());
  EXPECT_THAT(FieldsOf("requests of ipv4:10.0.0.7: allowed: 3"), IsEmpty());
  EXPECT_THAT(FieldsOf(""), IsEmpty());
  const auto bad = Find<google::rpc::BadRequest>(
      ToGrpc(absl::InvalidArgumentError("line 3: training.batch: 0; allowed: 1 and more")));
  EXPECT_EQ(bad.field_violations(0).description(), "line 3: 0; allowed: 1 and more");
}

TEST(GrpcStatusTest, ErrorInfoHasTheDomainAndTheField) {
  const grpc::Status status = ToGrpc(absl::NotFoundError("job: there is no 'x'"));
  const auto info = Find<google::rpc::ErrorInfo>(status);
  EXPECT_EQ(info.domain(), "nibble.v1");
  EXPECT_EQ(info.reason(), "NOT_FOUND");
  EXPECT_EQ(info.metadata().at("field"), "job");
  EXPECT_EQ(Find<google::rpc::BadRequest>(status).field_violations_size(), 0);
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(ToGrpc(absl::InvalidArgumentError("x"))).reason(),
            "INVALID_FIELD");
}

TEST(GrpcStatusTest, RetryInfoIsSetWhereARetryMaySucceed) {
  const auto delay_ms = [](const absl::Status& status) {
    const auto delay = Find<google::rpc::RetryInfo>(ToGrpc(status)).retry_delay();
    return delay.seconds() * 1000 + delay.nanos() / 1'000'000;
  };
  const absl::Status limit = absl::ResourceExhaustedError("too many");
  EXPECT_EQ(delay_ms(limit), 0);
  EXPECT_EQ(delay_ms(RetryAfter(limit, 1250)), 1250);
  EXPECT_EQ(delay_ms(absl::UnavailableError("stopping")), 1000);
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(ToGrpc(limit)).reason(), "LIMIT_REACHED");
  EXPECT_EQ(Find<google::rpc::ErrorInfo>(ToGrpc(RetryAfter(limit, 1))).reason(),
            "TOO_MANY_REQUESTS");
}

TEST(GrpcStatusTest, MessageAndDetailsFitIntoHeaders) {
  const auto percent_encoded = [](const std::string& text) {
    size_t bytes = 0;
    for (const char c : text) bytes += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
    return bytes;
  };
  for (const char* const piece : {"long ", "\xc3\xa9", "%"}) {
    for (const int lines : {1, 10}) {
      std::string message;
      for (int i = 0; i < lines; ++i) {
        absl::StrAppend(&message, "line ", i, ": field_", i, ": ");
        while (message.size() < static_cast<size_t>(i + 1) * 3000 / lines) message += piece;
        message += "\n";
      }
      const grpc::Status status = ToGrpc(absl::InvalidArgumentError(message));
      EXPECT_LE(percent_encoded(status.error_message()) + status.error_details().size() * 4 / 3,
                8192u - 512)
          << piece << lines;
      EXPECT_FALSE(status.error_message().empty());
    }
  }
  // For messages of plain characters the details always include the fields.
  EXPECT_THAT(FieldsOf("name: " + std::string(3000, 'x')), ElementsAre("name"));
}

TEST(GrpcStatusTest, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpc(absl::OkStatus()).error_details(), "");
}

}  // namespace
}  // namespace nibble
