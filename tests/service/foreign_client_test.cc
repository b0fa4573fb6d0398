// The coordinator's program and a client that has none of its .proto files and learns everything
// from server reflection. No message of nibble.v1 may be linked into this test, because it could
// replace one that the program fails to describe.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/descriptor_database.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/grpc/reflection/v1/reflection.pb.h"
#include "tests/service/coordinator_process.h"
#include "tests/service/testing.h"

namespace nibble {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;
using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline(60);
constexpr char kSpec[] =
    "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
    "data: {train: [corpus.txt], sequence: 128}\ntraining: {steps: 1000, batch: 16}\n";

// A client of one version of reflection.
class ForeignClient {
 public:
  ForeignClient(std::shared_ptr<grpc::Channel> channel, const std::string& version)
      : channel_(std::move(channel)),
        call_(
            absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo")) {}

  ServerReflectionResponse Call(const ServerReflectionRequest& request) {
    const GenericAnswer answer =
        CallWithBytes(channel_, call_, {request.SerializeAsString()}, kDeadline);
    EXPECT_TRUE(answer.status.ok()) << call_ << ": " << answer.status.error_message();
    ServerReflectionResponse response;
    EXPECT_EQ(answer.messages.size(), 1u) << call_;
    EXPECT_TRUE(!answer.messages.empty() && response.ParseFromString(answer.messages[0]));
    return response;
  }

  std::vector<std::string> Services() {
    ServerReflectionRequest request;
    request.set_list_services("*");
    const ServerReflectionResponse response = Call(request);
    std::vector<std::string> names;
    for (const auto& service : response.list_services_response().service()) {
      names.push_back(service.name());
    }
    return names;
  }

  // Null if the program does not describe it.
  const ServiceDescriptor* Describe(const std::string& service) {
    ServerReflectionRequest request;
    request.set_file_containing_symbol(service);
    const ServerReflectionResponse response = Call(request);
    EXPECT_EQ(response.error_response().error_message(), "") << service;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      google::protobuf::FileDescriptorProto known;
      if (!files_.FindFileByName(file.name(), &known)) files_.Add(file);
    }
    return pool_.FindServiceByName(service);
  }

  GenericAnswer Call(const MethodDescriptor& method, const std::string& request_json,
                     std::string& response_json) {
    const std::unique_ptr<Message> request(messages_.GetPrototype(method.input_type())->New());
    const auto read = google::protobuf::util::JsonStringToMessage(request_json, request.get());
    EXPECT_TRUE(read.ok()) << read.ToString();
    GenericAnswer answer = CallWithBytes(
        channel_, absl::StrCat("/", method.service()->full_name(), "/", method.name()),
        {request->SerializeAsString()}, kDeadline, method.server_streaming());
    const std::unique_ptr<Message> response(messages_.GetPrototype(method.output_type())->New());
    if (!answer.messages.empty()) {
      EXPECT_TRUE(response->ParseFromString(answer.messages[0])) << method.full_name();
    }
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    response_json.clear();
    EXPECT_TRUE(
        google::protobuf::util::MessageToJsonString(*response, &response_json, options).ok());
    return answer;
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string call_;
  google::protobuf::SimpleDescriptorDatabase files_;
  google::protobuf::DescriptorPool pool_{&files_};
  google::protobuf::DynamicMessageFactory messages_{&pool_};
};

class ForeignClientTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "foreign_XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    auto started = CoordinatorProcess::Start(
        {.program = CoordinatorProgram(), .store = root_ + "/store", .http = "127.0.0.1:0"});
    ASSERT_EQ(started.status(), absl::OkStatus());
    coordinator_ = *std::move(started);
    client_ = std::make_unique<ForeignClient>(coordinator_->Connect(), GetParam());
  }
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(root_);
  }

  GenericAnswer Call(const std::string& method, const std::string& request_json,
                     std::string& response_json) {
    const ServiceDescriptor* const service = client_->Describe("nibble.v1.Coordinator");
    if (service == nullptr || service->FindMethodByName(method) == nullptr) {
      ADD_FAILURE() << method << " is not described";
      return {};
    }
    return client_->Call(*service->FindMethodByName(method), request_json, response_json);
  }

  std::string root_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::unique_ptr<ForeignClient> client_;
};

TEST_P(ForeignClientTest, EveryServiceIsListedAndDescribed) {
  const std::vector<std::string> services = client_->Services();
  EXPECT_THAT(services, testing::UnorderedElementsAre(
                            "nibble.v1.Coordinator", "nibble.v1.Access", "nibble.v1.WorkerLink",
                            "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                            "grpc.reflection.v1alpha.ServerReflection"));
  for (const std::string& service : services) {
    EXPECT_NE(client_->Describe(service), nullptr) << service;
  }
}

TEST_P(ForeignClientTest, UnknownSymbolsAndFilesAreReported) {
  ServerReflectionRequest request;
  request.set_file_containing_symbol("nibble.v1.NoSuchThing");
  ServerReflectionResponse response = client_->Call(request);
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(response.error_response().error_message(), HasSubstr("nibble.v1.NoSuchThing"));
  EXPECT_EQ(response.original_request().file_containing_symbol(), "nibble.v1.NoSuchThing");
  request.set_file_by_filename("../../etc/passwd");
  EXPECT_EQ(client_->Call(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_all_extension_numbers_of_type("nibble.v1.Job");
  EXPECT_EQ(client_->Call(request).all_extension_numbers_response().base_type_name(),
            "nibble.v1.Job");
  EXPECT_EQ(client_->Call({}).error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_P(ForeignClientTest, AJobIsSubmittedAndDescribedThroughReflectionAlone) {
  std::string response;
  const std::string submit = absl::StrCat("{\"request_id\": \"request-1\", \"spec_yaml\": \"",
                                          absl::CEscape(kSpec), "\"}");
  const GenericAnswer submitted = Call("SubmitJob", submit, response);
  ASSERT_TRUE(submitted.status.ok()) << submitted.status.error_message();
  EXPECT_THAT(response, HasSubstr("\"id\":\"train-1\""));
  ASSERT_TRUE(Call("DescribeJob", "{\"job\": \"train-1\"}", response).status.ok());
  EXPECT_THAT(response, HasSubstr("\"state\":\"JOB_STATE_QUEUED\""));
  EXPECT_EQ(Call("DescribeJob", "{\"job\": \"train-9\"}", response).status.error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Call("WatchJobs", "{}", response).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(response, HasSubstr("\"job\":{\"id\":\"train-1\""));
}

TEST_P(ForeignClientTest, EveryMethodIsCountedAndTimedByName) {
  std::vector<std::string> unary;
  for (const std::string& name : client_->Services()) {
    const ServiceDescriptor* const service = client_->Describe(name);
    ASSERT_NE(service, nullptr) << name;
    for (int m = 0; m < service->method_count(); ++m) {
      const MethodDescriptor& method = *service->method(m);
      if (method.client_streaming() || method.name() == "Watch") continue;
      std::string response;
      client_->Call(method, "{}", response);
      if (!method.server_streaming()) unary.push_back(method.name());
    }
  }
  const auto page = HttpGet(coordinator_->http_port(), "/metrics");
  ASSERT_EQ(page.status(), absl::OkStatus());
  const auto exposed = Exposition::Parse(*page);
  ASSERT_EQ(exposed.status(), absl::OkStatus());
  EXPECT_THAT(*page, testing::Not(HasSubstr("method=\"other\"")));
  EXPECT_GT(unary.size(), 30u);
  for (const std::string& method : unary) {
    EXPECT_GE(exposed->Value(absl::StrCat("nibble_rpc_seconds_count{method=\"", method, "\"}")), 1)
        << method;
  }
}

INSTANTIATE_TEST_SUITE_P(Reflection, ForeignClientTest, testing::Values("v1", "v1alpha"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nibble
