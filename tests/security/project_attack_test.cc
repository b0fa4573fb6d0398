// Callers that are bound to a project, and jobs of another one: every call of the services, as
// their descriptors list them, with every request that can name the job.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/access.grpc.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/access/access_table.h"
#include "server/controller/testing.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using grpc::StatusCode;
using testing::ElementsAre;

// An id, owner and project that no other text of the cluster contains.
constexpr char kHiddenName[] = "zebra";
constexpr char kHiddenOwner[] = "zoe-of-speech";
constexpr char kHiddenProject[] = "speech-lab";

struct Answered {
  grpc::Status status;
  std::string bytes;  // of all responses
};

class ProjectAttackTest : public testing::Test {
 protected:
  ProjectAttackTest() {
    own_ = Submit(coordinator_.MakeToken("ann", v1::ROLE_SUBMITTER, 0, {"nlp"}), "train", "", 1);
    hidden_ = Submit(coordinator_.MakeToken(kHiddenOwner, v1::ROLE_SUBMITTER), kHiddenName,
                     kHiddenProject, 2);
  }

  std::string Submit(const std::string& token, const std::string& name, const std::string& project,
                     int number) {
    v1::SubmitJobRequest request;
    request.set_request_id(absl::StrCat("submission-", number));
    request.set_spec_yaml(TestCoordinator::Spec(name, 1));
    request.mutable_scheduling()->set_project(project);
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(CallWith(token).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }

  // A request of the method that names the job wherever it can name one.
  static std::string Naming(const MethodDescriptor& method, const std::string& job) {
    google::protobuf::DynamicMessageFactory factory;
    const std::unique_ptr<Message> request(factory.GetPrototype(method.input_type())->New());
    Name(*request, job);
    return request->SerializeAsString();
  }
  static void Name(Message& message, const std::string& job) {
    const auto& reflection = *message.GetReflection();
    const Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const bool text = field.type() == FieldDescriptor::TYPE_STRING;
      if (text && field.name() == "job") reflection.SetString(&message, &field, job);
      if (text && field.name() == "jobs") reflection.AddString(&message, &field, job);
      if (text && field.name() == "request_id") {
        static int requests = 0;
        reflection.SetString(&message, &field, absl::StrCat("attack-", ++requests));
      }
      if (field.name() == "ref" || field.name() == "checkpoint") {
        Name(*reflection.MutableMessage(&message, &field), job);
      }
    }
  }

  // Reads up to `most` responses.
  Answered Call(const std::string& call, const std::string& request, const std::string& token,
                int most) {
    const auto context = CallWith(token);
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(context.get(), call, &queue);
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    Answered answered;
    stream->StartCall(nullptr);
    (void)next();
    const grpc::Slice slice(request);
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    (void)next();
    for (int i = 0; i < most; ++i) {
      grpc::ByteBuffer buffer;
      stream->Read(&buffer, nullptr);
      if (!next()) break;
      std::vector<grpc::Slice> slices;
      EXPECT_TRUE(buffer.Dump(&slices).ok());
      for (const grpc::Slice& part : slices) {
        answered.bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
      }
    }
    if (most > 1) context->TryCancel();
    stream->Finish(&answered.status, nullptr);
    (void)next();
    return answered;
  }

  static void ExpectNothingOf(const std::string& text, const std::string& what) {
    for (const char* const hidden : {kHiddenName, kHiddenOwner, kHiddenProject}) {
      EXPECT_FALSE(absl::StrContains(text, hidden)) << what << " shows " << hidden << ": " << text;
    }
  }

  SecureCoordinator coordinator_;
  const std::shared_ptr<grpc::Channel> channel_ = coordinator_.Connect();
  const std::unique_ptr<v1::Coordinator::Stub> stub_ = v1::Coordinator::NewStub(channel_);
  std::string own_;
  std::string hidden_;
};

TEST_F(ProjectAttackTest, NoCallShowsAJobOfAnotherProject) {
  // Links descriptors that nothing else here refers to.
  (void)v1::ListTokensRequest::descriptor();
  int calls = 0;
  for (const v1::Role role : {v1::ROLE_VIEWER, v1::ROLE_SUBMITTER, v1::ROLE_OPERATOR}) {
    const std::string token =
        coordinator_.MakeToken(absl::StrCat("lead-", RoleText(role)), role, 0, {"nlp"});
    for (const char* const name : {"nibble.v1.Coordinator", "nibble.v1.Access"}) {
      const ServiceDescriptor& service =
          *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
      for (int i = 0; i < service.method_count(); ++i) {
        const MethodDescriptor& method = *service.method(i);
        const std::string call = absl::StrCat("/", name, "/", method.name());
        const AccessRow& row = *FindAccess(call);
        if (!CheckRole(row, role, "lead").ok()) continue;
        ++calls;
        // A watch of everything sends the jobs and that it has caught up; then it is silent.
        const bool lists = method.server_streaming() && row.scope == JobScope::kJobs;
        const Answered all = Call(call, "", token, lists ? 2 : 1);
        ExpectNothingOf(all.bytes + all.status.error_message(), call + " of nothing");
        const Answered named = Call(call, Naming(method, hidden_), token, 1);
        // The caller knows the name that it has sent.
        const std::string without =
            absl::StrReplaceAll(named.status.error_message(), {{hidden_, "X"}});
        ExpectNothingOf(named.bytes + without, call);
        const Answered unknown = Call(call, Naming(method, "nothing-9"), token, 1);
        EXPECT_EQ(named.status.error_code(), unknown.status.error_code()) << call;
        EXPECT_EQ(without,
                  absl::StrReplaceAll(unknown.status.error_message(), {{"nothing-9", "X"}}))
            << call;
        if (row.scope == JobScope::kJob) {
          EXPECT_EQ(named.status.error_code(), StatusCode::NOT_FOUND) << call;
          EXPECT_TRUE(coordinator_.Audited({"call", call, "subject", "job " + hidden_, "outcome",
                                            "refused", "code", "NOT_FOUND"}) ||
                      method.input_type()->FindFieldByName("ref") != nullptr ||
                      method.input_type()->FindFieldByName("checkpoint") != nullptr)
              << call;
        }
        if (row.scope == JobScope::kCluster) {
          EXPECT_EQ(named.status.error_code(), StatusCode::PERMISSION_DENIED) << call;
        }
      }
    }
  }
  EXPECT_GT(calls, 60);
}

TEST_F(ProjectAttackTest, ACallerOfAProjectSeesAllOfIt) {
  const std::string token = coordinator_.MakeToken("bob", v1::ROLE_VIEWER, 0, {"nlp", "vision"});
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub_->ListJobs(CallWith(token).get(), {}, &listed).ok());
  ASSERT_EQ(listed.jobs_size(), 1);
  EXPECT_EQ(listed.jobs(0).id(), own_);
  v1::ListJobsRequest of_other;
  of_other.set_project(kHiddenProject);
  ASSERT_TRUE(stub_->ListJobs(CallWith(token).get(), of_other, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 0);
  v1::DescribeJobRequest describe;
  describe.set_job(own_);
  describe.set_with_spec(true);
  v1::DescribeJobResponse described;
  ASSERT_TRUE(stub_->DescribeJob(CallWith(token).get(), describe, &described).ok());
  EXPECT_FALSE(described.spec_yaml().empty());
  // Others see everything, as before.
  const std::string viewer = coordinator_.MakeToken("eve", v1::ROLE_VIEWER);
  ASSERT_TRUE(stub_->ListJobs(CallWith(viewer).get(), {}, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 2);
}

TEST_F(ProjectAttackTest, AWatchOfEverythingShowsChangesOfTheProjectAlone) {
  const std::string token = coordinator_.MakeToken("bob", v1::ROLE_VIEWER, 0, {"nlp"});
  const auto context = CallWith(token);
  const auto watch = stub_->WatchJobs(context.get(), {});
  std::string all;
  std::vector<std::string> jobs;
  v1::WatchJobsResponse change;
  const auto read_until = [&](const auto& found) {
    while (watch->Read(&change)) {
      all += change.SerializeAsString();
      if (change.has_job()) jobs.push_back(change.job().id());
      if (found()) return true;
    }
    return false;
  };
  ASSERT_TRUE(read_until([&] { return change.caught_up(); }));
  EXPECT_THAT(jobs, ElementsAre(own_));
  // The hidden job changes first.
  const auto prioritise = [&](const std::string& job, int number) {
    v1::SetJobPriorityRequest request;
    request.set_request_id(absl::StrCat("priority-", number));
    request.set_job(job);
    request.set_priority(number);
    v1::SetJobPriorityResponse response;
    EXPECT_TRUE(
        stub_->SetJobPriority(CallWith(coordinator_.Bootstrap()).get(), request, &response).ok());
  };
  prioritise(hidden_, 1);
  prioritise(own_, 2);
  ASSERT_TRUE(
      read_until([&] { return change.has_job() && change.job().scheduling().priority() == 2; }));
  ExpectNothingOf(all, "the watch");
  context->TryCancel();
  (void)watch->Finish();
}

}  // namespace
}  // namespace nibble
