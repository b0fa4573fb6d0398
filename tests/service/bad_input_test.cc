// Every field of every request of every call gets every bad value: each is answered in time with a
// status that the contract names, and a refused request changes nothing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "server/controller/testing.h"
#include "server/service/coordinator_server.h"
#include "tests/service/testing.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

// Deadlines of one call. An accepted stream would not end, so it is cancelled after its deadline.
constexpr std::chrono::seconds kCallDeadline(20);
constexpr std::chrono::milliseconds kStreamDeadline(50);

// Whether the value does not exist in the type; such a value is always refused, naming the field.
bool IsNoValueAtAll(const std::string& what) {
  return absl::StrContains(what, " = enum 9999") || absl::StrContains(what, " = '\\xff");
}

std::string ProtoText() {
  std::ifstream in("proto/nibble/v1/coordinator.proto");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class BadInputTest : public testing::Test {
 protected:
  BadInputTest() : worker_(coordinator_, "w1", 2) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.rate.per_second = 0;
    auto server = CoordinatorServer::Start(coordinator_.controller(), options);
    EXPECT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(64 << 20);
    channel_ = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                         grpc::InsecureChannelCredentials(), arguments);
    // A busy cluster: one job runs and has a checkpoint, one waits.
    worker_.Obey();
    job_ = coordinator_.Submit(2);
    coordinator_.Tick();
    worker_.Obey(1);
    worker_.Store(10);
    coordinator_.Submit(2);
    coordinator_.Tick();
  }

  uint64_t Sequence() {
    coordinator_.controller().Settle();
    return coordinator_.store().Info().last_sequence;
  }

  // The request names things that exist.
  void FillPlausibly(Message& request, bool mutation) {
    const auto& reflection = *request.GetReflection();
    for (int f = 0; f < request.GetDescriptor()->field_count(); ++f) {
      const FieldDescriptor& field = *request.GetDescriptor()->field(f);
      if (field.name() == "request_id" && mutation) {
        reflection.SetString(&request, &field, absl::StrCat("request-bad-", ++requests_));
      } else if (field.name() == "job") {
        reflection.SetString(&request, &field, job_);
      } else if (field.name() == "worker") {
        reflection.SetString(&request, &field, "w1");
      } else if (field.name() == "spec_yaml") {
        reflection.SetString(&request, &field, TestCoordinator::Spec("train", 1));
      } else if (field.name() == "expected_revision") {
        reflection.SetInt64(&request, &field, -1);
      } else if (field.name() == "dry_run") {
        reflection.SetBool(&request, &field, true);
      } else if (field.name() == "ref" || field.name() == "checkpoint") {
        auto& ref = dynamic_cast<v1::CheckpointRef&>(*reflection.MutableMessage(&request, &field));
        ref.set_job(job_);
        ref.set_step(10);
      }
    }
  }

  // A fresh request id, so that it is not taken for a retry of an accepted request.
  std::string WithIdOfItsOwn(const std::string& what, const Message& bad) {
    const FieldDescriptor* const field = bad.GetDescriptor()->FindFieldByName("request_id");
    if (field == nullptr || absl::StartsWith(what, "request_id")) return bad.SerializeAsString();
    const std::unique_ptr<Message> copy(bad.New());
    copy->CopyFrom(bad);
    copy->GetReflection()->SetString(copy.get(), field, absl::StrCat("request-bad-", ++requests_));
    return copy->SerializeAsString();
  }

  GenericAnswer Call(const MethodDescriptor& method, const std::string& bytes,
                     bool is_refused = false) {
    const bool stream = method.server_streaming();
    const bool waits = method.name() == "WaitJob" && !is_refused;
    return CallWithBytes(
        channel_, absl::StrCat("/", method.service()->full_name(), "/", method.name()), {bytes},
        (stream && !is_refused) || waits ? kStreamDeadline : kCallDeadline, stream);
  }

  // Checks that the answer is in time and within the contract, and that a refusal changed nothing.
  void Check(const MethodDescriptor& method, const std::string& what, const std::string& bytes) {
    const uint64_t before = Sequence();
    const GenericAnswer answer = Call(method, bytes, IsNoValueAtAll(what));
    const std::string code = CodeName(answer.status.error_code());
    const std::string context = absl::StrCat(method.name(), ", ", what, ": ", code, " ",
                                             answer.status.error_message().substr(0, 200));
    ++calls_;
    codes_[code]++;
    const bool stream = method.server_streaming() || method.name() == "WaitJob";
    if (stream && answer.status.error_code() == grpc::StatusCode::CANCELLED) return;
    // Every call refuses values beyond the bounds of server/state/limits.h first.
    ASSERT_TRUE(promised_.at(method.name()).contains(code) || code == "INVALID_ARGUMENT")
        << context;
    if (!stream) {
      ASSERT_NE(code, "DEADLINE_EXCEEDED") << context;
    }
    if (answer.status.ok()) {
      ASSERT_FALSE(IsNoValueAtAll(what)) << context;
      return;
    }
    if (!stream) {
      ASSERT_FALSE(answer.status.error_message().empty()) << context;
    }
    CheckDetails(answer.status, what, context);
    ASSERT_EQ(Sequence(), before) << context << " has changed the state";
  }

  // The details for programs agree with the message for people.
  static void CheckDetails(const grpc::Status& status, const std::string& what,
                           const std::string& context) {
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return;  // the client's own
    google::rpc::Status details;
    ASSERT_TRUE(details.ParseFromString(status.error_details())) << context;
    ASSERT_EQ(details.code(), status.error_code()) << context;
    google::rpc::ErrorInfo info;
    ASSERT_GE(details.details_size(), 1) << context;
    ASSERT_TRUE(details.details(0).UnpackTo(&info)) << context;
    ASSERT_EQ(info.domain(), "nibble.v1") << context;
    google::rpc::BadRequest bad;
    (void)details.details(details.details_size() - 1).UnpackTo(&bad);
    for (const auto& violation : bad.field_violations()) {
      ASSERT_FALSE(violation.field().empty()) << context;
    }
    if (!IsNoValueAtAll(what)) return;
    ASSERT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << context;
    ASSERT_EQ(bad.field_violations_size(), 1) << context;
    // The path is that of `what`, which lacks the indices of list entries.
    std::string field;
    bool in_brackets = false;
    for (const char c : bad.field_violations(0).field()) {
      in_brackets |= c == '[';
      if (!in_brackets) field += c;
      in_brackets &= c != ']';
    }
    ASSERT_EQ(field, what.substr(0, what.find(" = "))) << context;
  }

  const google::protobuf::LogSilencer silence_;  // for strings that are not UTF-8
  TestCoordinator coordinator_;
  TestWorker worker_;
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::string job_;
  int64_t requests_ = 0, calls_ = 0;
  std::map<std::string, int64_t> codes_;
  const std::map<std::string, std::set<std::string>> promised_ = PromisedCodes(ProtoText());
};

const ServiceDescriptor& Coordinator() {
  // Links the descriptor, so that it can be found by name.
  (void)v1::WatchJobsRequest::descriptor();
  (void)v1::SetQueueRequest::descriptor();
  return *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "nibble.v1.Coordinator");
}

TEST_F(BadInputTest, TheContractNamesTheCodesOfEveryRpc) {
  for (int m = 0; m < Coordinator().method_count(); ++m) {
    const std::string& name = Coordinator().method(m)->name();
    ASSERT_TRUE(promised_.contains(name)) << name;
    EXPECT_GE(promised_.at(name).size(), 6u) << name;
  }
}

TEST_F(BadInputTest, EveryInvalidFieldIsAnsweredWithAPromisedCode) {
  for (int m = 0; m < Coordinator().method_count(); ++m) {
    const MethodDescriptor& method = *Coordinator().method(m);
    const std::unique_ptr<Message> request(google::protobuf::MessageFactory::generated_factory()
                                               ->GetPrototype(method.input_type())
                                               ->New());
    ASSERT_NO_FATAL_FAILURE(Check(method, "nothing set", ""));
    FillPlausibly(*request, true);
    ForEachBadValue(*request, [&](const std::string& what, const Message& bad) {
      if (HasFatalFailure()) return;
      Check(method, what, WithIdOfItsOwn(what, bad));
    });
    ASSERT_FALSE(HasFatalFailure());
  }
  std::vector<std::string> counts;
  for (const auto& [code, count] : codes_) counts.push_back(absl::StrCat(code, " ", count));
  std::printf("%lld calls: %s\n", static_cast<long long>(calls_),
              absl::StrJoin(counts, ", ").c_str());
  EXPECT_GT(calls_, 1000);
  EXPECT_GT(codes_["INVALID_ARGUMENT"], 500);
  // The coordinator still serves, with its state unchanged.
  EXPECT_EQ(coordinator_.Job(job_).id(), job_);
}

// Strings that are not UTF-8, and bytes that are no message.
TEST_F(BadInputTest, InvalidMessagesAreRefusedAndChangeNothing) {
  std::mt19937_64 random(7);
  const uint64_t before = Sequence();
  for (int m = 0; m < Coordinator().method_count(); ++m) {
    const MethodDescriptor& method = *Coordinator().method(m);
    const bool reads_job =
        method.input_type()->FindFieldByName("job") != nullptr && !method.server_streaming();
    std::vector<std::string> garbage = {std::string(1, '\x0a'), "\x0a\x04\xff\xfe\xfd\xfc",
                                        "\x0a\xff\xff\xff\xff\x0f", std::string(100, '\xff')};
    for (int i = 0; i < 5; ++i) {
      std::string bytes(1 + random() % 200, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      garbage.push_back(bytes);
    }
    for (const std::string& bytes : garbage) {
      const GenericAnswer answer = Call(method, bytes);
      if (reads_job) {
        EXPECT_FALSE(answer.status.ok()) << method.name();
      }
      EXPECT_NE(answer.status.error_code(), grpc::StatusCode::UNKNOWN) << method.name();
      EXPECT_NE(answer.status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method.name();
    }
  }
  EXPECT_EQ(Sequence(), before);
  EXPECT_EQ(coordinator_.Job(job_).id(), job_);
}

// An unknown field is ignored in a request, but refused inside the message of a change.
TEST_F(BadInputTest, UnknownFieldsAreIgnoredExceptInsideChanges) {
  const std::string unknown("\xf8\x3e\x01", 3);  // field 1007: 1
  const MethodDescriptor& list = *Coordinator().FindMethodByName("ListJobs");
  v1::ListJobsRequest jobs;
  jobs.mutable_page()->GetReflection()->MutableUnknownFields(jobs.mutable_page())->AddVarint(7, 1);
  EXPECT_TRUE(Call(list, jobs.SerializeAsString() + unknown).status.ok());

  const MethodDescriptor& submit = *Coordinator().FindMethodByName("SubmitJob");
  v1::SubmitJobRequest request;
  request.set_request_id("request-unknown-1");
  request.set_spec_yaml(TestCoordinator::Spec("train", 1));
  const GenericAnswer first = Call(submit, request.SerializeAsString() + unknown);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  // Without the field it is the same request.
  const GenericAnswer again = Call(submit, request.SerializeAsString());
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.messages, first.messages);

  request.set_request_id("request-unknown-2");
  v1::JobScheduling& scheduling = *request.mutable_scheduling();
  scheduling.GetReflection()->MutableUnknownFields(&scheduling)->AddVarint(1007, 1);
  const uint64_t before = Sequence();
  const grpc::Status refused = Call(submit, request.SerializeAsString()).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StartsWith(refused.error_message(), "scheduling: has field 1007"))
      << refused.error_message();
  EXPECT_EQ(Sequence(), before);
}

TEST_F(BadInputTest, AMessageAboveTheBoundIsRefusedUnread) {
  const MethodDescriptor& submit = *Coordinator().FindMethodByName("SubmitJob");
  v1::SubmitJobRequest request;
  request.set_spec_yaml(std::string(32 << 20, 'x'));
  const uint64_t before = Sequence();
  EXPECT_EQ(Call(submit, request.SerializeAsString()).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Sequence(), before);
}

// A report with a bad field ends its stream with a status, or has no effect.
TEST_F(BadInputTest, EveryInvalidFieldOfAReportIsAnswered) {
  v1::ConnectRequest report = worker_.report;
  report.mutable_identity()->set_name("w9");
  v1::GangReport& gang = report.gangs_size() > 0 ? *report.mutable_gangs(0) : *report.add_gangs();
  gang.set_job(job_);
  gang.set_attempt(1);
  gang.set_phase(v1::RANK_PHASE_RUNNING);
  int64_t refused = 0, calls = 0;
  ForEachBadValue(report, [&](const std::string& what, const Message& bad) {
    const GenericAnswer answer = CallWithBytes(channel_, "/nibble.v1.WorkerLink/Connect",
                                               {bad.SerializeAsString()}, kCallDeadline, true);
    ++calls;
    const grpc::StatusCode code = answer.status.error_code();
    const bool named = code == grpc::StatusCode::OK || code == grpc::StatusCode::CANCELLED ||
                       code == grpc::StatusCode::INVALID_ARGUMENT ||
                       code == grpc::StatusCode::ABORTED ||
                       code == grpc::StatusCode::FAILED_PRECONDITION ||
                       code == grpc::StatusCode::RESOURCE_EXHAUSTED;
    EXPECT_TRUE(named) << what << ": " << CodeName(code) << " " << answer.status.error_message();
    refused += code == grpc::StatusCode::INVALID_ARGUMENT;
  });
  EXPECT_GT(calls, 200);
  EXPECT_GT(refused, 50);
  EXPECT_EQ(coordinator_.Job(job_).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator_.Job(job_).attempts(), 1);
}

}  // namespace
}  // namespace nibble
