// Streams and waits that are open when their caller's token ends, and requests that are sent again.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/controller/testing.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

class OpenStreamAttackTest : public testing::Test {
 protected:
  using Stub = v1::Coordinator::Stub;

  v1::SubmitJobRequest Submission(const std::string& id) const {
    v1::SubmitJobRequest request;
    request.set_request_id(id);
    request.set_spec_yaml(TestCoordinator::Spec("train", 1));
    return request;
  }
  grpc::Status Submit(const std::string& token, const v1::SubmitJobRequest& request, v1::Job& job) {
    v1::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(CallWith(token).get(), request, &response);
    job = response.job();
    return status;
  }
  int Jobs() {
    v1::ListJobsResponse listed;
    const grpc::Status status =
        stub_->ListJobs(CallWith(coordinator_.Bootstrap()).get(), {}, &listed);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return listed.jobs_size();
  }

  SecureCoordinator coordinator_;
  const std::unique_ptr<Stub> stub_ = v1::Coordinator::NewStub(coordinator_.Connect());
};

// Reads a stream to its end.
template <class Reader, class Message>
grpc::Status EndOf(Reader& reader, Message& message) {
  while (reader.Read(&message)) {
  }
  return reader.Finish();
}

TEST_F(OpenStreamAttackTest, ARevokedTokenEndsItsOpenStreamsAndWaits) {
  v1::Job job;
  ASSERT_TRUE(Submit(coordinator_.Bootstrap(), Submission("request-1"), job).ok());
  const std::string token = coordinator_.MakeToken("ann", v1::ROLE_VIEWER);
  const auto watching = CallWith(token), following = CallWith(token), waiting = CallWith(token);
  const auto others = CallWith(coordinator_.Bootstrap());
  const auto watch = stub_->WatchJobs(watching.get(), {});
  const auto other = stub_->WatchJobs(others.get(), {});
  v1::WatchJobsResponse changed;
  while (!changed.caught_up()) ASSERT_TRUE(watch->Read(&changed));
  changed.Clear();
  while (!changed.caught_up()) ASSERT_TRUE(other->Read(&changed));
  v1::StreamLogsRequest logs;
  logs.set_job(job.id());
  logs.set_rank(-1);
  logs.set_follow(true);
  const auto lines = stub_->StreamLogs(following.get(), logs);
  grpc::Status waited;
  std::thread wait([&] {
    v1::WaitJobRequest request;
    request.set_job(job.id());
    v1::WaitJobResponse response;
    waited = stub_->WaitJob(waiting.get(), request, &response);
  });
  EXPECT_TRUE(Eventually(
      [&] { return coordinator_.Metrics().find("\nnibble_waits_open 1\n") != std::string::npos; }));
  coordinator_.RevokeToken(token);
  const grpc::Status watched = EndOf(*watch, changed);
  v1::StreamLogsResponse line;
  const grpc::Status followed = EndOf(*lines, line);
  wait.join();
  for (const grpc::Status& status : {watched, followed, waited}) {
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("revoked"));
  }
  for (const char* call : {"WatchJobs", "StreamLogs", "WaitJob"}) {
    EXPECT_TRUE(coordinator_.Audited({"call", absl::StrCat("/nibble.v1.Coordinator/", call), "who",
                                      "ann", "outcome", "refused", "code", "UNAUTHENTICATED"}))
        << call;
  }
  // Another's stream goes on.
  ASSERT_TRUE(Submit(coordinator_.Bootstrap(), Submission("request-2"), job).ok());
  EXPECT_TRUE(other->Read(&changed));
  others->TryCancel();
  (void)other->Finish();
}

TEST_F(OpenStreamAttackTest, ReflectionStreamsAreFewPerCallerAndEndWithItsToken) {
  constexpr size_t kAllowed = 8;
  using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  const std::string token = coordinator_.MakeToken("ann", v1::ROLE_VIEWER);
  const std::shared_ptr<grpc::Channel> channel = coordinator_.Connect();
  const grpc::internal::RpcMethod method(
      "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::BIDI_STREAMING, channel);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  const auto open = [&] {
    contexts.push_back(CallWith(token));
    return std::unique_ptr<Stream>(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel.get(), method, contexts.back().get()));
  };
  // ServerReflectionRequest {list_services: ""}.
  const grpc::Slice list_services(std::string("\x3a\x00", 2));
  grpc::ByteBuffer answer;
  std::vector<std::unique_ptr<Stream>> streams;
  for (size_t i = 0; i < kAllowed; ++i) {
    streams.push_back(open());
    ASSERT_TRUE(streams.back()->Write(grpc::ByteBuffer(&list_services, 1)));
    ASSERT_TRUE(streams.back()->Read(&answer));
  }
  const grpc::Status refused = open()->Finish();
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("are open; allowed: 8"));
  coordinator_.RevokeToken(token);
  for (const auto& stream : streams) {
    const grpc::Status status = EndOf(*stream, answer);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("revoked"));
  }
}

TEST_F(OpenStreamAttackTest, AnExpiredTokenEndsItsOpenStreams) {
  const std::string token = coordinator_.MakeToken("ann", v1::ROLE_VIEWER, 3000);
  const auto context = CallWith(token);
  const auto watch = stub_->WatchJobs(context.get(), {});
  v1::WatchJobsResponse changed;
  ASSERT_TRUE(watch->Read(&changed));
  const grpc::Status status = EndOf(*watch, changed);
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("expired"));
}

TEST_F(OpenStreamAttackTest, AReplayedRequestIsCarriedOutOnceAndForItsCallerAlone) {
  const std::string ann = coordinator_.MakeToken("ann", v1::ROLE_SUBMITTER);
  const std::string bob = coordinator_.MakeToken("bob", v1::ROLE_SUBMITTER);
  const v1::SubmitJobRequest request = Submission("request-1");
  v1::Job first, again, stolen;
  ASSERT_TRUE(Submit(ann, request, first).ok());
  ASSERT_TRUE(Submit(ann, request, again).ok());
  EXPECT_EQ(again.id(), first.id());
  EXPECT_EQ(Jobs(), 1);
  // The same bytes with another's token are another's request.
  ASSERT_TRUE(Submit(bob, request, stolen).ok());
  EXPECT_NE(stolen.id(), first.id());
  EXPECT_EQ(stolen.owner(), "bob");
  v1::CancelJobRequest cancel;
  cancel.set_request_id("request-2");
  cancel.set_job(first.id());
  cancel.set_reason("done");
  v1::CancelJobResponse cancelled;
  ASSERT_TRUE(stub_->CancelJob(CallWith(ann).get(), cancel, &cancelled).ok());
  EXPECT_EQ(stub_->CancelJob(CallWith(bob).get(), cancel, &cancelled).error_code(),
            StatusCode::PERMISSION_DENIED);
  // What was answered once is not answered again to a token that has been revoked since.
  coordinator_.RevokeToken(ann);
  EXPECT_EQ(Submit(ann, request, again).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(stub_->CancelJob(CallWith(ann).get(), cancel, &cancelled).error_code(),
            StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Jobs(), 2);
}

TEST_F(OpenStreamAttackTest, ATokenOfAProjectChangesNothingElse) {
  const auto token = [&](const std::string& name, v1::Role role) {
    return coordinator_.MakeToken(name, role, 0, {"nlp"});
  };
  const std::string ann = token("ann", v1::ROLE_SUBMITTER), lead = token("lead", v1::ROLE_OPERATOR);
  const auto submit = [&](const std::string& with, const std::string& id,
                          const std::string& project, v1::Job& job) {
    v1::SubmitJobRequest request = Submission(id);
    request.mutable_scheduling()->set_project(project);
    return Submit(with, request, job).error_code();
  };
  v1::Job own, others, none;
  EXPECT_EQ(submit(ann, "request-1", "", own), StatusCode::OK);
  EXPECT_EQ(own.scheduling().project(), "nlp");
  EXPECT_EQ(submit(ann, "request-2", "speech", none), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(submit(coordinator_.Bootstrap(), "request-3", "speech", others), StatusCode::OK);
  // An operator of the project changes all of its jobs, and no others.
  v1::SetJobPriorityRequest change;
  v1::SetJobPriorityResponse changed;
  change.set_request_id("request-4");
  change.set_job(own.id());
  change.set_priority(3);
  EXPECT_TRUE(stub_->SetJobPriority(CallWith(lead).get(), change, &changed).ok());
  change.set_job(others.id());
  change.set_request_id("request-5");
  const grpc::Status refused = stub_->SetJobPriority(CallWith(lead).get(), change, &changed);
  // To it there is no such job.
  EXPECT_EQ(refused.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(refused.error_message(), "job: there is no '" + others.id() + "'");
  EXPECT_TRUE(coordinator_.Audited({"call", "/nibble.v1.Coordinator/SetJobPriority", "who", "lead",
                                    "subject", "job " + others.id(), "outcome", "refused"}));
  // Nor the cluster, nor tokens, with which it could make itself another one.
  v1::SetQueueRequest queue;
  v1::SetQueueResponse set;
  queue.set_request_id("request-6");
  queue.mutable_queue()->set_name("nights");
  EXPECT_EQ(stub_->SetQueue(CallWith(lead).get(), queue, &set).error_code(),
            StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(coordinator_.TryMakeToken(lead, "eve", v1::ROLE_OPERATOR).error_code(),
            StatusCode::PERMISSION_DENIED);
  // A job is found by its project.
  v1::ListJobsRequest list;
  list.set_project("nlp");
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub_->ListJobs(CallWith(ann).get(), list, &listed).ok());
  ASSERT_EQ(listed.jobs_size(), 1);
  EXPECT_EQ(listed.jobs(0).id(), own.id());
}

}  // namespace
}  // namespace nibble
