// Programs with the wrong certificate: of another authority, expired, or of another program.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/process/spawn.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/gang_meeting.grpc.pb.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

constexpr char kConnect[] = "/nibble.v1.WorkerLink/Connect";

class PeerAttackTest : public testing::Test {
 protected:
  TlsFiles WorkerFiles(const std::string& name) const {
    return coordinator_.authority().Issue(name, {PeerKind::kWorker, name});
  }
  static grpc::Status List(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& token) {
    v1::ListJobsResponse listed;
    return v1::Coordinator::NewStub(channel)->ListJobs(CallWith(token).get(), {}, &listed);
  }
  // Connects as a daemon does, with one report of a worker of this name.
  static grpc::Status Report(const std::shared_ptr<grpc::Channel>& channel, const std::string& name,
                             const std::string& token = "") {
    const auto stub = v1::WorkerLink::NewStub(channel);
    const auto context = CallWith(token);
    const auto stream = stub->Connect(context.get());
    v1::ConnectRequest report;
    v1::WorkerIdentity& identity = *report.mutable_identity();
    identity.set_name(name);
    identity.set_incarnation(1);
    identity.set_address("127.0.0.1:7000");
    identity.set_slots(1);
    identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
    report.set_number(1);
    stream->Write(report);
    v1::ConnectResponse response;
    if (!stream->Read(&response)) return stream->Finish();
    context->TryCancel();
    (void)stream->Finish();
    return grpc::Status::OK;
  }
  std::vector<std::string> WorkerCommand(const std::string& name, const TlsFiles& files) {
    return {BuiltProgram("worker/agent/nibble-worker"),
            "--coordinator",
            coordinator_.process().address(),
            "--data",
            coordinator_.Path("data-" + name),
            "--name",
            name,
            "--http",
            "",
            "--tls-cert",
            files.certificate,
            "--tls-key",
            files.key,
            "--tls-ca",
            files.authority};
  }

  SecureCoordinator coordinator_;
};

TEST_F(PeerAttackTest, ACertificateOfAnotherAuthorityReachesNothing) {
  const TestAuthority other(coordinator_.directory(), "other");
  TlsFiles foreign = other.Issue("eve", {PeerKind::kClient, "cli"});
  foreign.authority = coordinator_.client_files().authority;
  EXPECT_EQ(List(coordinator_.Connect(foreign), coordinator_.Bootstrap()).error_code(),
            StatusCode::UNAVAILABLE);
  TlsFiles worker = other.Issue("evil", {PeerKind::kWorker, "w1"});
  worker.authority = foreign.authority;
  EXPECT_EQ(Report(coordinator_.Connect(worker), "w1").error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(List(coordinator_.Connect(), coordinator_.Bootstrap()).ok());
}

TEST_F(PeerAttackTest, WithoutACertificateNotEvenHealthAnswers) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  EXPECT_EQ(List(grpc::CreateCustomChannel(coordinator_.process().address(),
                                           grpc::InsecureChannelCredentials(), arguments),
                 coordinator_.Bootstrap())
                .error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_TRUE(coordinator_.process().Lives());
}

TEST_F(PeerAttackTest, ACertificateThatNamesNobodyIsRefused) {
  // An authority that also serves others may sign certificates without a name of ours: such a
  // certificate is not accepted from a server, nor, by the programs, as one's own.
  const auto refused = Credentials::Make({.certificate = coordinator_.Path("lab-ca.pem"),
                                          .key = coordinator_.client_files().key,
                                          .authority = coordinator_.client_files().authority});
  EXPECT_FALSE(refused.ok());
}

TEST_F(PeerAttackTest, AWorkerCannotClaimAnothersName) {
  const TlsFiles files = WorkerFiles("w1");
  const auto channel = coordinator_.Connect(files);
  const grpc::Status refused = Report(channel, "w2");
  EXPECT_EQ(refused.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("identity.name: 'w2'"));
  EXPECT_TRUE(coordinator_.Audited({"call", kConnect, "who", "w1", "subject", "worker w2",
                                    "outcome", "refused", "peer", "nibble://worker/w1"}));
  const grpc::Status accepted = Report(channel, "w1");
  EXPECT_TRUE(accepted.ok()) << accepted.error_message();
  EXPECT_TRUE(coordinator_.Audited(
      {"call", kConnect, "who", "w1", "proof", "certificate", "outcome", "done"}));
  // The program refuses itself, before it connects.
  std::string command;
  for (const std::string& word : WorkerCommand("w2", files)) {
    absl::StrAppend(&command, "'", word, "' ");
  }
  const ShellResult program = Shell(command + "2>&1");
  EXPECT_EQ(program.code, 2);
  EXPECT_THAT(program.text, HasSubstr("it names nibble://worker/w1"));
}

TEST_F(PeerAttackTest, ARevokedTokenOfAWorkerDoesNotReportAgain) {
  const std::string token = coordinator_.MakeToken("w1", v1::ROLE_WORKER);
  const auto channel = coordinator_.Connect(WorkerFiles("w1"));
  EXPECT_TRUE(Report(channel, "w1", token).ok());
  // With the certificate of another worker, or of a client.
  EXPECT_EQ(Report(coordinator_.Connect(WorkerFiles("w2")), "w1", token).error_code(),
            StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Report(coordinator_.Connect(), "w1", token).error_code(),
            StatusCode::PERMISSION_DENIED);
  const auto stub = v1::WorkerLink::NewStub(channel);
  const auto context = CallWith(token);
  const auto stream = stub->Connect(context.get());
  v1::ConnectRequest report;
  report.mutable_identity()->set_name("w1");
  report.mutable_identity()->set_incarnation(2);
  report.mutable_identity()->set_address("127.0.0.1:7000");
  report.mutable_identity()->set_slots(1);
  report.mutable_identity()->mutable_hardware()->set_device(v1::DEVICE_CPU);
  report.set_number(1);
  ASSERT_TRUE(stream->Write(report));
  v1::ConnectResponse response;
  ASSERT_TRUE(stream->Read(&response));
  coordinator_.RevokeToken(token);
  report.set_number(2);
  stream->Write(report);
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << status.error_message();
}

TEST_F(PeerAttackTest, AClientIsNoWorkerAndAWorkerNoClient) {
  EXPECT_EQ(Report(coordinator_.Connect(), "w1").error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Report(coordinator_.Connect(), "w1", coordinator_.Bootstrap()).error_code(),
            StatusCode::PERMISSION_DENIED);
  const grpc::Status listed = List(coordinator_.Connect(WorkerFiles("w1")), "");
  EXPECT_EQ(listed.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(listed.error_message(), HasSubstr("w1 is worker; allowed: viewer and above"));
}

TEST_F(PeerAttackTest, AWorkerServesShardsToWorkersAndLogsToTheCoordinatorAlone) {
  const TlsFiles files = WorkerFiles("w1");
  const auto worker = SpawnProcess({.arguments = WorkerCommand("w1", files)});
  ASSERT_EQ(worker.status(), absl::OkStatus());
  v1::DescribeWorkerResponse described;
  v1::DescribeWorkerRequest describe;
  describe.set_worker("w1");
  ASSERT_TRUE(Eventually([&] {
    return v1::Coordinator::NewStub(coordinator_.Connect())
        ->DescribeWorker(CallWith(coordinator_.Bootstrap()).get(), describe, &described)
        .ok();
  }));
  const std::string address = described.worker().identity().address();
  const auto channel = [&](const TlsFiles& own) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        address, (*Credentials::Make(own))->ForChannelTo(PeerKind::kWorker), arguments);
  };
  const auto shard = [&](const TlsFiles& own) {
    v1::DescribeShardRequest request;
    request.mutable_shard()->mutable_checkpoint()->set_job("../../etc");
    v1::DescribeShardResponse response;
    return v1::ShardStore::NewStub(channel(own))
        ->DescribeShard(CallWith("").get(), request, &response)
        .error_code();
  };
  const auto meeting = [&](const TlsFiles& own) {
    v1::GetMeetingResponse response;
    return v1::GangMeeting::NewStub(channel(own))
        ->GetMeeting(CallWith("").get(), {}, &response)
        .error_code();
  };
  const auto log = [&](const TlsFiles& own, const std::string& job) {
    v1::ReadRankLogRequest request;
    request.set_job(job);
    request.set_attempt(1);
    request.set_events(true);
    v1::ReadRankLogResponse response;
    const auto context = CallWith("");
    const auto stream = v1::RankLogs::NewStub(channel(own))->ReadRankLog(context.get(), request);
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish().error_code();
  };
  const TlsFiles other_worker = WorkerFiles("w2");
  const TlsFiles coordinator = {.certificate = coordinator_.Path("coordinator.pem"),
                                .key = coordinator_.Path("coordinator-key.pem"),
                                .authority = coordinator_.Path("lab-ca.pem")};
  EXPECT_EQ(shard(coordinator_.client_files()), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(meeting(coordinator_.client_files()), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(log(coordinator_.client_files(), "x"), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(log(other_worker, "x"), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(shard(coordinator), StatusCode::PERMISSION_DENIED);
  // Callers that may ask, for names that lead out of the data directory.
  const StatusCode asked = shard(other_worker);
  EXPECT_TRUE(asked == StatusCode::NOT_FOUND || asked == StatusCode::INVALID_ARGUMENT) << asked;
  const StatusCode read = log(coordinator, "../../../etc");
  EXPECT_TRUE(read == StatusCode::NOT_FOUND || read == StatusCode::INVALID_ARGUMENT) << read;
  ASSERT_EQ(kill(*worker, SIGTERM), 0);
  int ended = 0;
  EXPECT_EQ(waitpid(*worker, &ended, 0), *worker);
}

TEST_F(PeerAttackTest, AWorkersCertificateDrainsAndReturnsThatWorkerAndNothingElse) {
  const TlsFiles files = WorkerFiles("w1");
  const auto process = SpawnProcess({.arguments = WorkerCommand("w1", files)});
  ASSERT_EQ(process.status(), absl::OkStatus());
  const auto stub = v1::Coordinator::NewStub(coordinator_.Connect(files));
  const auto people = v1::Coordinator::NewStub(coordinator_.Connect());
  const std::string operators = coordinator_.Bootstrap();
  int requests = 0;
  // An empty token: the worker's own call.
  const auto worker = [&](const std::string& token = "", const std::string& name = "w1") {
    v1::DescribeWorkerRequest request;
    request.set_worker(name);
    v1::DescribeWorkerResponse response;
    const grpc::Status status =
        (token.empty() ? stub : people)->DescribeWorker(CallWith(token).get(), request, &response);
    return std::pair(status.error_code(), response.worker());
  };
  ASSERT_TRUE(Eventually([&] { return worker().first == StatusCode::OK; }));
  const auto drain = [&](const std::string& token, const std::string& name) {
    v1::DrainWorkerRequest request;
    request.set_request_id(absl::StrCat("request-", ++requests));
    request.set_worker(name);
    request.set_reason("test");
    v1::DrainWorkerResponse response;
    return (token.empty() ? stub : people)
        ->DrainWorker(CallWith(token).get(), request, &response)
        .error_code();
  };
  const auto uncordon = [&](const std::string& token, const std::string& name, bool clear_flags) {
    v1::UncordonWorkerRequest request;
    request.set_request_id(absl::StrCat("request-", ++requests));
    request.set_worker(name);
    request.set_clear_flags(clear_flags);
    v1::UncordonWorkerResponse response;
    return (token.empty() ? stub : people)
        ->UncordonWorker(CallWith(token).get(), request, &response)
        .error_code();
  };
  EXPECT_EQ(drain("", "w1"), StatusCode::OK);
  EXPECT_EQ(worker(operators).second.mode(), v1::WORKER_MODE_DRAINING);
  EXPECT_TRUE(coordinator_.Audited({"call", "/nibble.v1.Coordinator/DrainWorker", "who", "w1",
                                    "role", "worker", "proof", "certificate", "subject",
                                    "worker w1", "outcome", "done"}));
  EXPECT_EQ(uncordon("", "w1", false), StatusCode::OK);
  EXPECT_EQ(worker(operators).second.mode(), v1::WORKER_MODE_OPEN);
  for (const char* const name : {"w2", "", "W1", "w1 "}) {
    EXPECT_EQ(drain("", name), StatusCode::PERMISSION_DENIED) << name;
    EXPECT_EQ(uncordon("", name, false), StatusCode::PERMISSION_DENIED) << name;
    EXPECT_EQ(worker("", name).first, StatusCode::PERMISSION_DENIED) << name;
  }
  EXPECT_EQ(uncordon("", "w1", true), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(coordinator_.Audited({"call", "/nibble.v1.Coordinator/UncordonWorker", "who", "w1",
                                    "outcome", "refused", "code", "PERMISSION_DENIED"}));
  // What an operator has drained stays drained.
  EXPECT_EQ(drain(operators, "w1"), StatusCode::OK);
  EXPECT_EQ(uncordon("", "w1", false), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(worker(operators).second.mode(), v1::WORKER_MODE_DRAINING);
  EXPECT_EQ(uncordon(operators, "w1", false), StatusCode::OK);

  // The hooks of a worker's pod, which has no token.
  const auto run = [&](const std::string& hook) {
    return Shell(absl::StrCat("unset NIBBLE_TOKEN NIBBLE_TOKEN_FILE; PATH=",
                              std::filesystem::absolute(NibbleProgram()).parent_path().string(),
                              ":$PATH POD_NAME=w1 NIBBLE_DRAIN_SECONDS=60 NIBBLE_SERVER=",
                              coordinator_.process().address(),
                              " NIBBLE_CLIENT_FLAGS='--tls-cert=", files.certificate,
                              " --tls-key=", files.key, " --tls-ca=", files.authority, "' sh ",
                              BuiltProgram("deploy/kubernetes/base/hooks/" + hook), " 2>&1"));
  };
  const ShellResult drained = run("drain.sh");
  EXPECT_EQ(drained.code, 0) << drained.text;
  EXPECT_EQ(worker(operators).second.mode(), v1::WORKER_MODE_DRAINING) << drained.text;
  EXPECT_EQ(worker(operators).second.mode_reason(), "its pod stops");
  const ShellResult returned = run("return.sh");
  EXPECT_EQ(worker(operators).second.mode(), v1::WORKER_MODE_OPEN) << returned.text;
  ASSERT_EQ(kill(*process, SIGTERM), 0);
  int ended = 0;
  EXPECT_EQ(waitpid(*process, &ended, 0), *process);
}

TEST_F(PeerAttackTest, AnExpiredCertificateIsRenewedWithoutARestart) {
  SecureCoordinator expired(-60);
  EXPECT_EQ(List(expired.Connect(), "").error_code(), StatusCode::UNAVAILABLE);
  expired.authority().Issue("coordinator", {PeerKind::kCoordinator, ""});
  EXPECT_TRUE(Eventually([&] { return List(expired.Connect(), expired.Bootstrap()).ok(); }));
  // A caller's, too.
  const TlsFiles late = expired.authority().Issue("late", {PeerKind::kClient, "late"}, -60);
  EXPECT_EQ(List(expired.Connect(late), expired.Bootstrap()).error_code(), StatusCode::UNAVAILABLE);
  const TlsFiles renewed = expired.authority().Issue("late", {PeerKind::kClient, "late"});
  EXPECT_TRUE(List(expired.Connect(renewed), expired.Bootstrap()).ok());
}

TEST_F(PeerAttackTest, NothingListensOffLoopbackWithoutTls) {
  const ShellResult coordinator =
      Shell(absl::StrCat(CoordinatorProgram(), " --store ", coordinator_.Path("other"),
                         " --cluster test --listen 0.0.0.0:0 --bootstrap-token-file ",
                         coordinator_.Path("token"), " 2>&1"));
  EXPECT_EQ(coordinator.code, 1);
  EXPECT_THAT(coordinator.text, HasSubstr("is not loopback"));
  const ShellResult worker = Shell(
      absl::StrCat(BuiltProgram("worker/agent/nibble-worker"), " --coordinator 127.0.0.1:1 --data ",
                   coordinator_.Path("d"), " --name w --address 0.0.0.0:0 2>&1"));
  EXPECT_NE(worker.code, 0);
  EXPECT_THAT(worker.text, HasSubstr("is not loopback"));
}

}  // namespace
}  // namespace nibble
