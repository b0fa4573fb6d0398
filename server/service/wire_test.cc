#include "server/service/wire.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"

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

// Fields that no version of ours has, as a newer program's message has them here.
void AddNewFields(google::protobuf::Message& message) {
  auto& unknown = *message.GetReflection()->MutableUnknownFields(&message);
  unknown.AddVarint(1007, 1);
  unknown.AddLengthDelimited(1008)->assign(100, 'x');
}

TEST(ReceivedReportTest, FieldsOfANewerDaemonAreDroppedAtEveryDepth) {
  v1::ConnectRequest report;
  report.mutable_identity()->set_name("w1");
  report.mutable_identity()->mutable_hardware()->set_device(v1::DEVICE_CPU);
  report.add_gangs()->add_ranks()->set_rank(3);
  const std::string known = report.SerializeAsString();
  AddNewFields(report);
  AddNewFields(*report.mutable_identity());
  AddNewFields(*report.mutable_identity()->mutable_hardware());
  AddNewFields(*report.mutable_gangs(0)->mutable_ranks(0));
  EXPECT_NE(report.SerializeAsString(), known);
  EXPECT_EQ(CheckReceived(report), absl::OkStatus());
  EXPECT_EQ(report.SerializeAsString(), known);
}

TEST(ReceivedReportTest, EnumValuesOfANewerDaemonCountAsUnset) {
  v1::ConnectRequest report;
  report.mutable_identity()->mutable_topology()->add_links()->set_path(
      static_cast<v1::CardPath>(77));
  v1::GangReport& gang = *report.add_gangs();
  gang.set_phase(v1::RANK_PHASE_FAILED);
  gang.set_cause(static_cast<v1::FailureCause>(77));
  gang.set_detail("rank 1: a failure that the coordinator has no name for");
  EXPECT_EQ(CheckReceived(report), absl::OkStatus());
  EXPECT_EQ(report.identity().topology().links(0).path(), v1::CARD_PATH_UNSPECIFIED);
  EXPECT_EQ(gang.cause(), v1::FAILURE_CAUSE_UNSPECIFIED);
  EXPECT_EQ(gang.phase(), v1::RANK_PHASE_FAILED);
  EXPECT_EQ(gang.detail(), "rank 1: a failure that the coordinator has no name for");
}

// Else a newer daemon's report with a list of enum values would be refused.
TEST(ReceivedReportTest, ReportsHaveNoListsOfEnumValues) {
  std::vector<const google::protobuf::Descriptor*> types = {v1::ConnectRequest::descriptor()};
  for (size_t t = 0; t < types.size(); ++t) {
    for (int i = 0; i < types[t]->field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *types[t]->field(i);
      EXPECT_FALSE(field.enum_type() != nullptr && field.is_repeated()) << field.full_name();
      const auto* const inner = field.message_type();
      if (inner != nullptr && std::find(types.begin(), types.end(), inner) == types.end()) {
        types.push_back(inner);
      }
    }
  }
  EXPECT_GT(types.size(), 10);
}

TEST(ReceivedRequestTest, TextsWithCharactersThatNobodySeesAreRefused) {
  const auto refused = [](google::protobuf::Message& message) {
    const absl::Status status = CheckReceived(message);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  v1::KillJobRequest kill;
  kill.set_request_id("request-1");
  kill.set_reason("naïve → שלום");
  EXPECT_EQ(CheckReceived(kill), absl::OkStatus());
  kill.set_reason("paid \u202e100 ton\u202c");
  EXPECT_THAT(refused(kill), testing::StartsWith("reason: 'paid \\xe2\\x80\\xae"));
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  submit.set_spec_yaml("name: a\n# \u2067\n");
  EXPECT_THAT(refused(submit), testing::StartsWith("spec_yaml: "));
}

TEST(ReceivedReportTest, WhatNobodySeesInAReportIsABlank) {
  v1::ConnectRequest report;
  report.mutable_identity()->set_name("w1");
  report.add_gangs()->set_detail("error: \u202eno\n");
  EXPECT_EQ(CheckReceived(report), absl::OkStatus());
  EXPECT_EQ(report.gangs(0).detail(), "error:  no\n");
  EXPECT_EQ(report.identity().name(), "w1");
}

TEST(ReceivedRequestTest, ChangesKeepToTheContract) {
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  AddNewFields(submit);
  EXPECT_EQ(CheckReceived(submit), absl::OkStatus());
  AddNewFields(*submit.mutable_scheduling());
  EXPECT_EQ(CheckReceived(submit).message(),
            "scheduling: has field 1007, which this coordinator does not know; upgrade the "
            "coordinator or unset the field");
  v1::ListJobsRequest list;
  list.add_states(static_cast<v1::JobState>(77));
  EXPECT_EQ(std::string(CheckReceived(list).message()).substr(0, 41),
            "states[0]: 77; allowed of JobState: JOB_S");
}

}  // namespace
}  // namespace nibble
