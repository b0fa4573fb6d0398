// Commands while the coordinator is away, or loses its responses.
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/client_remote/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RetryTest : public RemoteClusterTest {};

TEST_F(RetryTest, ACommandSucceedsWhenTheCoordinatorReturns) {
  const std::string spec = RemoteCluster::SpecFile();
  cluster_.Stop();
  NibbleProcess submit({"job", "submit", spec, "--timeout", "60s"});
  EXPECT_THAT(submit.ErrLine(), HasSubstr("does not answer; retrying for 1m"));
  cluster_.Start();
  EXPECT_EQ(submit.OutLine(), "train-1");
  EXPECT_EQ(submit.Wait(), 0);
  EXPECT_EQ(Json({"job", "list"})["jobs"].size(), 1u);
}

TEST_F(RetryTest, AnUnreachableCoordinatorIsNamedInTheError) {
  cluster_.Stop();
  const Outcome listed = Nibble({"job", "list", "--timeout", "200ms"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.out, IsEmpty());
  EXPECT_THAT(listed.err, AllOf(HasSubstr("nibble job list: no answer from " + cluster_.address()),
                                HasSubstr("NIBBLE_SERVER")));
  cluster_.Start();
  setenv("NIBBLE_SERVER", "nonsense", 1);
  EXPECT_THAT(Nibble({"job", "list"}).err, HasSubstr("NIBBLE_SERVER: 'nonsense'"));
}

TEST_F(RetryTest, WithoutAClusterTheErrorIsImmediateAndNamesTheRemedy) {
  cluster_.Stop();
  const Outcome listed = Nibble({"job", "list"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.out, IsEmpty());
  EXPECT_EQ(listed.err, "nibble job list: nothing listens at " + cluster_.address() +
                            ": run 'nibble cluster up' to start a cluster here, name another with "
                            "--server or NIBBLE_SERVER, or wait for one that is starting with "
                            "--timeout\n");
  cluster_.Start();
}

TEST_F(RetryTest, TheServerOptionMayStandBeforeTheVerb) {
  setenv("NIBBLE_SERVER", "127.0.0.1:1", 1);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--server", cluster_.address(), "job", "list"},
                                             {"job", "--server", cluster_.address(), "list"},
                                             {"job", "list", "--server", cluster_.address()}}) {
    const Outcome listed = NibbleProcess::Run(words);
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
  }
}

// Applies every pause, but loses its first responses, and forgets tasks.
class ForgetfulCoordinator : public v1::Coordinator::Service {
 public:
  static constexpr int kLost = 2;

  ForgetfulCoordinator() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    setenv("NIBBLE_SERVER", absl::StrCat("127.0.0.1:", port).c_str(), 1);
  }
  ~ForgetfulCoordinator() override { server_->Shutdown(); }

  grpc::Status DescribeJob(grpc::ServerContext*, const v1::DescribeJobRequest* request,
                           v1::DescribeJobResponse* response) override {
    response->mutable_job()->set_id(request->job());
    return grpc::Status::OK;
  }

  grpc::Status PauseJob(grpc::ServerContext* context, const v1::PauseJobRequest* request,
                        v1::PauseJobResponse* response) override {
    const MutexLock lock(&mutex_);
    ids.push_back(request->request_id());
    const auto author = context->client_metadata().find("nibble-author");
    has_author = author != context->client_metadata().end() && !author->second.empty();
    if (ids.size() <= kLost) return {grpc::StatusCode::UNAVAILABLE, "stopping"};
    response->mutable_job()->set_id(request->job());
    return grpc::Status::OK;
  }

  grpc::Status VerifyCheckpoint(grpc::ServerContext*, const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override {
    *response->mutable_ref() = request->ref();
    response->set_task(1);
    return grpc::Status::OK;
  }

  // Stores only tasks after that one.
  grpc::Status DescribeCheckpoint(grpc::ServerContext*,
                                  const v1::DescribeCheckpointRequest* request,
                                  v1::DescribeCheckpointResponse* response) override {
    *response->mutable_checkpoint()->mutable_ref() = request->ref();
    response->mutable_checkpoint()->add_tasks()->set_number(2);
    return grpc::Status::OK;
  }

  // To be read while no call is running.
  std::vector<std::string> ids;
  bool has_author = false;

 private:
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RetryTest, RetriesOfAChangeShareARequestIdAndCommandsDoNot) {
  ForgetfulCoordinator coordinator;
  EXPECT_EQ(Nibble({"job", "pause", "train-1"}).exit_code, 0);
  ASSERT_EQ(coordinator.ids.size(), 3u);
  EXPECT_EQ(std::set<std::string>(coordinator.ids.begin(), coordinator.ids.end()).size(), 1u);
  EXPECT_EQ(coordinator.ids[0].size(), 32u);
  EXPECT_TRUE(coordinator.has_author);
  EXPECT_EQ(Nibble({"job", "pause", "train-1"}).exit_code, 0);
  EXPECT_NE(coordinator.ids[3], coordinator.ids[0]);
}

TEST_F(RetryTest, AWaitForATaskThatNewerOnesHaveReplacedEnds) {
  ForgetfulCoordinator coordinator;
  const Outcome verified = NibbleProcess::Run({"checkpoint", "verify", "train-1@100"});
  EXPECT_EQ(verified.exit_code, 102);
  EXPECT_THAT(verified.err, HasSubstr("task: 1 of train-1@100 has ended"));
}

}  // namespace
}  // namespace nibble
