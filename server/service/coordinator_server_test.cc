#include "server/service/coordinator_server.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/google/rpc/status.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "server/controller/testing.h"
#include "server/service/services.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using grpc::StatusCode;

// A call that hangs fails rather than the whole test.
constexpr std::chrono::seconds kDeadline(60);

class CoordinatorServerTest : public testing::Test {
 protected:
  CoordinatorServerTest() { Serve({}); }

  void Serve(ControllerOptions options, ServerOptions server_options = {}) {
    server_.reset();
    coordinator_ = std::make_unique<TestCoordinator>(std::move(options));
    server_options.listen = "127.0.0.1:0";
    auto server = CoordinatorServer::Start(coordinator_->controller(), server_options);
    ASSERT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::Coordinator::NewStub(channel_);
    link_ = v1::WorkerLink::NewStub(channel_);
  }

  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kDeadline);
    return context;
  }

  std::string Submit(const std::string& id = "request-1") {
    v1::SubmitJobRequest request;
    request.set_request_id(id);
    request.set_spec_yaml(TestCoordinator::Spec("train", 1));
    v1::SubmitJobResponse response;
    auto context = Context();
    context->AddMetadata("nibble-author", "ann");
    const grpc::Status status = stub_->SubmitJob(context.get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }

  static v1::ConnectRequest Report() {
    v1::ConnectRequest report;
    v1::WorkerIdentity& identity = *report.mutable_identity();
    identity.set_name("w1");
    identity.set_incarnation(1);
    identity.set_address("w1:7000");
    identity.set_slots(1);
    identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
    return report;
  }

  // Calls a method with serialised bytes; returns the bytes of the first response.
  std::string Raw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    auto context = Context();
    auto call = stub.PrepareCall(context.get(), method, &queue);
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    EXPECT_TRUE(next());
    const grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    EXPECT_TRUE(next());
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    EXPECT_TRUE(next());
    grpc::Status status;
    call->Finish(&status, nullptr);
    EXPECT_TRUE(next());
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(answer.Dump(&slices).ok());
    std::string text;
    for (const grpc::Slice& part : slices) {
      text.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    return text;
  }

  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<v1::WorkerLink::Stub> link_;
};

TEST_F(CoordinatorServerTest, AJobIsSubmittedListedAndDescribed) {
  const std::string job = Submit();
  EXPECT_EQ(Submit(), job);  // the same request id
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
  ASSERT_EQ(listed.jobs_size(), 1);
  EXPECT_EQ(listed.jobs(0).owner(), "ann");
  v1::DescribeJobRequest request;
  request.set_job(job);
  request.set_with_spec(true);
  v1::DescribeJobResponse described;
  ASSERT_TRUE(stub_->DescribeJob(Context().get(), request, &described).ok());
  EXPECT_EQ(described.job().state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(described.spec_yaml(), TestCoordinator::Spec("train", 1));
}

TEST_F(CoordinatorServerTest, StatusesAreThoseOfTheContract) {
  v1::DescribeJobRequest describe;
  describe.set_job("train-9");
  v1::DescribeJobResponse described;
  EXPECT_EQ(stub_->DescribeJob(Context().get(), describe, &described).error_code(),
            StatusCode::NOT_FOUND);
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  submit.set_spec_yaml("name: x\nmodel: no-such-model\n");
  v1::SubmitJobResponse submitted;
  const grpc::Status refused = stub_->SubmitJob(Context().get(), submit, &submitted);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("no-such-model"));
  submit.set_spec_yaml(std::string(2 << 20, 'x'));
  EXPECT_EQ(stub_->SubmitJob(Context().get(), submit, &submitted).error_code(),
            StatusCode::INVALID_ARGUMENT);
  submit.set_spec_yaml(std::string(9 << 20, 'x'));
  EXPECT_EQ(stub_->SubmitJob(Context().get(), submit, &submitted).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(CoordinatorServerTest, ARecipeIsSetReadComparedAndItsHistoryListed) {
  const std::string job = Submit();
  v1::SetRecipeRequest set;
  set.set_request_id("request-2");
  set.set_job(job);
  set.set_expected_revision(1);
  v1::FieldSetting& setting = *set.mutable_change()->add_set();
  setting.set_field("fprop");
  setting.set_value("bf16");
  v1::SetRecipeResponse answer;
  ASSERT_TRUE(stub_->SetRecipe(Context().get(), set, &answer).ok());
  EXPECT_EQ(answer.revision(), 2);
  set.set_request_id("request-3");
  EXPECT_EQ(stub_->SetRecipe(Context().get(), set, &answer).error_code(),
            StatusCode::FAILED_PRECONDITION);
  v1::GetRecipeRequest get;
  get.set_job(job);
  get.set_revision(2);
  get.set_resolved(true);
  v1::GetRecipeResponse got;
  ASSERT_TRUE(stub_->GetRecipe(Context().get(), get, &got).ok());
  EXPECT_EQ(got.latest_revision(), 2);
  EXPECT_NE(got.table(), "");
  v1::DiffRecipeRequest diff;
  diff.set_job(job);
  v1::DiffRecipeResponse differs;
  ASSERT_TRUE(stub_->DiffRecipe(Context().get(), diff, &differs).ok());
  ASSERT_GT(differs.differences_size(), 0);
  EXPECT_EQ(differs.differences(0).field(), "fprop");
  v1::ListRecipeRevisionsRequest history;
  history.set_job(job);
  v1::ListRecipeRevisionsResponse revisions;
  ASSERT_TRUE(stub_->ListRecipeRevisions(Context().get(), history, &revisions).ok());
  EXPECT_EQ(revisions.revisions_size(), 2);
  v1::GetRecipeCostRequest cost;
  cost.set_job(job);
  v1::GetRecipeCostResponse costs;
  ASSERT_TRUE(stub_->GetRecipeCost(Context().get(), cost, &costs).ok());
  EXPECT_GT(costs.cost().total_ratio(), 0);
  EXPECT_LT(costs.cost().total_ratio(), 1);
  v1::ListRecipePresetsResponse presets;
  ASSERT_TRUE(stub_->ListRecipePresets(Context().get(), {}, &presets).ok());
  EXPECT_GT(presets.presets_size(), 3);
}

TEST_F(CoordinatorServerTest, AWatchSendsTheJobsThenTheirUpdatesAndResumes) {
  const std::string job = Submit();
  v1::WatchJobsRequest request;
  request.add_jobs(job);
  auto context = Context();
  auto stream = stub_->WatchJobs(context.get(), request);
  v1::WatchJobsResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.job().id(), job);
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_TRUE(message.caught_up());
  const std::string token = message.resume_token();
  v1::PauseJobRequest pause;
  pause.set_request_id("request-2");
  pause.set_job(job);
  v1::PauseJobResponse paused;
  ASSERT_TRUE(stub_->PauseJob(Context().get(), pause, &paused).ok());
  EXPECT_EQ(paused.job().state(), v1::JOB_STATE_PAUSED);
  while (!message.has_job()) ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.job().state(), v1::JOB_STATE_PAUSED);
  context->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);

  request.set_resume_token(token);
  auto again = Context();
  auto resumed = stub_->WatchJobs(again.get(), request);
  ASSERT_TRUE(resumed->Read(&message));
  EXPECT_TRUE(message.has_event());
  EXPECT_EQ(message.event().number(), 2);
  again->TryCancel();
  resumed->Finish();

  request.set_resume_token("not ours");
  auto third = Context();
  auto refused = stub_->WatchJobs(third.get(), request);
  EXPECT_EQ(refused->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(CoordinatorServerTest, AWorkerRegistersAndReceivesItsDesiredState) {
  auto context = Context();
  auto stream = link_->Connect(context.get());
  v1::ConnectRequest report = Report();
  v1::ConnectResponse desired;
  ASSERT_TRUE(stream->Write(report));
  ASSERT_TRUE(stream->Read(&desired));
  EXPECT_EQ(desired.cluster(), "test");
  EXPECT_EQ(desired.number(), 1);
  EXPECT_EQ(desired.gangs_size(), 0);
  v1::DescribeWorkerRequest describe;
  describe.set_worker("w1");
  v1::DescribeWorkerResponse worker;
  ASSERT_TRUE(stub_->DescribeWorker(Context().get(), describe, &worker).ok());
  EXPECT_TRUE(worker.worker().present());

  const std::string job = Submit();
  coordinator_->Tick();
  // Sent without a report.
  while (desired.gangs_size() == 0) ASSERT_TRUE(stream->Read(&desired));
  EXPECT_EQ(desired.gangs(0).job(), job);
  EXPECT_EQ(desired.gangs(0).spec_yaml(), TestCoordinator::Spec("train", 1));
  v1::GangReport& gang = *report.add_gangs();
  gang.set_job(job);
  gang.set_attempt(1);
  gang.set_phase(v1::RANK_PHASE_RUNNING);
  const int64_t number = desired.number();
  ASSERT_TRUE(stream->Write(report));
  while (desired.number() == number) ASSERT_TRUE(stream->Read(&desired));
  EXPECT_EQ(coordinator_->Job(job).state(), v1::JOB_STATE_RUNNING);

  stream->WritesDone();
  while (stream->Read(&desired)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(CoordinatorServerTest, HeartbeatsOfANewerWorkerAreTakenAndWhatItAddedIsNotStored) {
  const auto add_field = [](auto* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(1007)->assign(
        "new");
  };
  auto context = Context();
  auto stream = link_->Connect(context.get());
  v1::ConnectRequest report = Report();
  add_field(&report);
  add_field(report.mutable_identity());
  add_field(report.mutable_identity()->mutable_hardware());
  v1::ConnectResponse desired;
  ASSERT_TRUE(stream->Write(report));
  ASSERT_TRUE(stream->Read(&desired));
  const std::string job = Submit();
  coordinator_->Tick();
  while (desired.gangs_size() == 0) ASSERT_TRUE(stream->Read(&desired));

  v1::GangReport& gang = *report.add_gangs();
  gang.set_job(job);
  gang.set_attempt(1);
  gang.set_phase(v1::RANK_PHASE_FAILED);
  gang.set_cause(static_cast<v1::FailureCause>(77));
  gang.set_detail("rank 0: a failure of another kind");
  add_field(&gang);
  ASSERT_TRUE(stream->Write(report));
  while (desired.gangs_size() > 0) ASSERT_TRUE(stream->Read(&desired));
  EXPECT_EQ(coordinator_->Job(job).state(), v1::JOB_STATE_RECOVERING);

  const std::string known = Report().identity().SerializeAsString();
  const auto expect_stored = [&] {
    coordinator_->controller().Inspect([&](const State& shown) {
      EXPECT_EQ(shown.FindWorker("w1")->identity().SerializeAsString(), known);
      EXPECT_EQ(shown.FindJob(job)->SerializeAsString().find("added-later"), std::string::npos);
    });
  };
  expect_stored();
  context->TryCancel();
  stream->Finish();
  // Also opens the store, which refuses fields that are unknown.
  server_.reset();
  coordinator_->Restart();
  expect_stored();
}

TEST_F(CoordinatorServerTest, AnOlderIncarnationEndsTheStream) {
  auto context = Context();
  auto stream = link_->Connect(context.get());
  v1::ConnectRequest report = Report();
  report.mutable_identity()->set_incarnation(2);
  v1::ConnectResponse desired;
  ASSERT_TRUE(stream->Write(report));
  ASSERT_TRUE(stream->Read(&desired));
  auto other_context = Context();
  auto other = link_->Connect(other_context.get());
  ASSERT_TRUE(other->Write(Report()));
  while (other->Read(&desired)) {
  }
  EXPECT_EQ(other->Finish().error_code(), StatusCode::ABORTED);
  context->TryCancel();
  stream->Finish();
}

TEST_F(CoordinatorServerTest, AWaitEndsWithTheJobOrTheCallersDeadline) {
  const std::string job = Submit();
  v1::WaitJobRequest wait;
  wait.set_job(job);
  v1::WaitJobResponse waited;
  auto soon = std::make_unique<grpc::ClientContext>();
  soon->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1));
  EXPECT_EQ(stub_->WaitJob(soon.get(), wait, &waited).error_code(), StatusCode::DEADLINE_EXCEEDED);
  v1::KillJobRequest kill;
  kill.set_request_id("request-2");
  kill.set_job(job);
  v1::KillJobResponse killed;
  ASSERT_TRUE(stub_->KillJob(Context().get(), kill, &killed).ok());
  ASSERT_TRUE(stub_->WaitJob(Context().get(), wait, &waited).ok());
  EXPECT_EQ(waited.job().state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(CoordinatorServerTest, AWorkerWithoutAValidAddressIsRefusedAndTheFieldNamed) {
  const auto connect = [this](const v1::ConnectRequest& report) {
    auto context = Context();
    const auto stream = link_->Connect(context.get());
    EXPECT_TRUE(stream->Write(report));
    v1::ConnectResponse desired;
    if (stream->Read(&desired)) context->TryCancel();
    return stream->Finish();
  };
  for (const char* const bad :
       {"", "w1", "w1:0", "http://w1:7000", "0.0.0.0:7000", "[::]:7000", "169.254.169.254:x"}) {
    v1::ConnectRequest report = Report();
    report.mutable_identity()->set_address(bad);
    grpc::Status status = connect(report);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << bad;
    EXPECT_THAT(status.error_message(), testing::StartsWith("identity.address: ")) << bad;
    if (*bad == '\0') continue;  // an empty http_address is allowed
    report = Report();
    report.mutable_identity()->set_http_address(bad);
    status = connect(report);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << bad;
    EXPECT_THAT(status.error_message(), testing::StartsWith("identity.http_address: ")) << bad;
  }
  // Loopback is allowed if the worker is on this machine.
  v1::ConnectRequest local = Report();
  local.mutable_identity()->set_address("127.0.0.1:7000");
  EXPECT_EQ(connect(local).error_code(), StatusCode::CANCELLED);
}

TEST_F(CoordinatorServerTest, HealthProbesCoverTheServerAndEachService) {
  // HealthCheckRequest {service}; HealthCheckResponse {status: 1} is SERVING, 2 is not.
  const std::string method = "/grpc.health.v1.Health/Check";
  const auto ask = [&](const std::string& service) {
    return Raw(method, service.empty()
                           ? ""
                           : std::string("\x0a") + static_cast<char>(service.size()) + service);
  };
  for (const char* const service :
       {"", "nibble.v1.Coordinator", "nibble.v1.Access", "nibble.v1.WorkerLink"}) {
    server_->SetServing(true);
    EXPECT_EQ(ask(service), std::string("\x08\x01")) << service;
    server_->SetServing(false);
    EXPECT_EQ(ask(service), std::string("\x08\x02")) << service;
  }
}

TEST_F(CoordinatorServerTest, ARefusalHasItsFieldInTheDetails) {
  v1::SetJobPriorityRequest request;
  request.set_request_id("request-1");
  request.set_job(Submit("request-0"));
  request.set_priority(5000);
  v1::SetJobPriorityResponse response;
  const grpc::Status status = stub_->SetJobPriority(Context().get(), request, &response);
  ASSERT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(details.message(), status.error_message());
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(details.details_size() - 1).UnpackTo(&bad));
  ASSERT_EQ(bad.field_violations_size(), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "priority");
  // Errors name the path in the request, not in the stored update.
  request.set_priority(5);
  request.set_reason(std::string(kMaxReasonBytes + 1, 'x'));
  EXPECT_THAT(stub_->SetJobPriority(Context().get(), request, &response).error_message(),
              testing::StartsWith("reason: "));
}

TEST_F(CoordinatorServerTest, AWatchThatIsNotReadIsCut) {
  ControllerOptions options;
  options.watches.kept = 8;
  Serve(options);
  // Every message about this job is large.
  v1::SubmitJobRequest submit;
  submit.set_spec_yaml(TestCoordinator::Spec("train", 1));
  for (int i = 0; i < 60; ++i) {
    v1::Label& label = *submit.mutable_scheduling()->add_preferred_labels();
    label.set_key(absl::StrCat("key", i));
    label.set_value(std::string(900, 'v'));
  }
  const auto submitted = coordinator_->Do<v1::SubmitJobResponse>(submit);
  ASSERT_EQ(submitted.status(), absl::OkStatus());
  auto context = Context();
  auto stream = stub_->WatchJobs(context.get(), {});
  v1::WatchJobsResponse message;
  while (!message.caught_up()) ASSERT_TRUE(stream->Read(&message));
  // Reads nothing while far more changes than the connection and the buffer can hold.
  constexpr int kChanges = 600;
  for (int i = 1; i <= kChanges; ++i) {
    v1::SetJobPriorityRequest request;
    request.set_job(submitted->job().id());
    request.set_priority(i);
    ASSERT_EQ(coordinator_->Do<v1::SetJobPriorityResponse>(request).status(), absl::OkStatus());
  }
  int64_t read = 0;
  while (stream->Read(&message)) ++read;
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_LT(read, kChanges);
}

TEST_F(CoordinatorServerTest, ASilentStreamEndsWithTheLease) {
  auto context = Context();
  auto silent = link_->Connect(context.get());
  auto other_context = Context();
  auto other = link_->Connect(other_context.get());
  v1::ConnectResponse desired;
  ASSERT_TRUE(other->Write(Report()));
  ASSERT_TRUE(other->Read(&desired));
  // Streams of a connection are in order, so the first has arrived, too.
  coordinator_->clock.Advance(6'000);
  ASSERT_TRUE(other->Write(Report()));
  const int64_t number = desired.number();
  while (desired.number() == number) ASSERT_TRUE(other->Read(&desired));
  coordinator_->clock.Advance(6'000);
  coordinator_->Tick();
  EXPECT_FALSE(silent->Read(&desired));
  const grpc::Status ended = silent->Finish();
  EXPECT_EQ(ended.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(ended.error_message(), testing::HasSubstr("no report for 12000 ms"));
  // A stream that reports stays open.
  ASSERT_TRUE(other->Write(Report()));
  ASSERT_TRUE(other->Read(&desired));
  other_context->TryCancel();
}

TEST_F(CoordinatorServerTest, APeerAboveTheRateIsToldWhenToRetry) {
  ServerOptions options;
  options.rate = {.per_second = 1, .burst = 2};
  Serve({}, options);
  v1::ListJobsResponse listed;
  EXPECT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
  EXPECT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
  const grpc::Status refused = stub_->ListJobs(Context().get(), {}, &listed);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("retry in"));
  // Streams are requests too.
  auto context = Context();
  auto watch = stub_->WatchJobs(context.get(), {});
  EXPECT_EQ(watch->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  coordinator_->clock.Advance(1000);
  EXPECT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
}

TEST_F(CoordinatorServerTest, ASpecAboveTheOperatorsBoundIsRefusedAndTheBoundNamed) {
  ServerOptions options;
  options.service.spec_bytes = 50;
  Serve({}, options);
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  submit.set_spec_yaml(TestCoordinator::Spec("train", 1));
  v1::SubmitJobResponse submitted;
  const grpc::Status refused = stub_->SubmitJob(Context().get(), submit, &submitted);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("allowed: 50"));
}

TEST_F(CoordinatorServerTest, AChangeThatIsNotDurableInTimeIsAnswered) {
  ServerOptions options;
  options.service.change_ms = 1;
  Serve({}, options);
  coordinator_->store().Hold();
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  submit.set_spec_yaml(TestCoordinator::Spec("train", 1));
  v1::SubmitJobResponse submitted;
  const grpc::Status held = stub_->SubmitJob(Context().get(), submit, &submitted);
  EXPECT_EQ(held.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(held.error_message(), testing::HasSubstr("request id"));
  coordinator_->store().Release();
  coordinator_->controller().Settle();
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 1);
}

TEST_F(CoordinatorServerTest, AChangeInFlightWhenTheServerEndsIsToBeRepeated) {
  Serve({});
  coordinator_->store().Hold();
  v1::SubmitJobRequest submit;
  submit.set_request_id("request-1");
  submit.set_spec_yaml(TestCoordinator::Spec("train", 1));
  v1::SubmitJobResponse submitted;
  grpc::Status held;
  const auto context = Context();
  context->AddMetadata("nibble-author", "ann");
  std::thread caller([&] { held = stub_->SubmitJob(context.get(), submit, &submitted); });
  while (coordinator_->store().Metrics().waiting == 0) std::this_thread::yield();
  server_->Shutdown(/*grace_ms=*/0);
  caller.join();
  EXPECT_EQ(held.error_code(), StatusCode::UNAVAILABLE) << held.error_message();
  EXPECT_THAT(held.error_message(), testing::HasSubstr("repeat the change under its request id"));
  // The next coordinator gives the repeated change the answer of the first.
  coordinator_->store().Release();
  coordinator_->controller().Settle();
  const auto repeated = coordinator_->Do<v1::SubmitJobResponse>(submit);
  ASSERT_EQ(repeated.status(), absl::OkStatus());
  EXPECT_EQ(repeated->job().id(), "train-1");
  EXPECT_EQ(coordinator_->Do<v1::SubmitJobResponse>(submit)->job().id(), "train-1");
}

TEST_F(CoordinatorServerTest, AChangeThatIsDurableWithinTheGraceIsAnsweredWhenTheServerEnds) {
  Serve({});
  coordinator_->store().Hold();
  std::string job;
  std::thread caller([&] { job = Submit(); });
  while (coordinator_->store().Metrics().waiting == 0) std::this_thread::yield();
  std::thread ending([&] { server_->Shutdown(/*grace_ms=*/60'000); });
  coordinator_->store().Release();
  caller.join();
  ending.join();
  EXPECT_EQ(job, "train-1");
}

TEST_F(CoordinatorServerTest, ListeningOffLoopbackIsRefusedUnlessInsecure) {
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckListen("0.0.0.0:7700", false, false)));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckListen("127.example.org:7700", false, false)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckListen("localhost", false, false)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckListen("localhost:70000", false, false)));
  EXPECT_EQ(CheckListen("0.0.0.0:7700", true, false), absl::OkStatus());
  // With TLS and authentication.
  EXPECT_EQ(CheckListen("0.0.0.0:7700", false, true), absl::OkStatus());
  EXPECT_EQ(CheckListen("127.0.0.1:7700", false, false), absl::OkStatus());
  EXPECT_EQ(CheckListen("[::1]:0", false, false), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
