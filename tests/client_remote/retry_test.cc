// What the command line does while nobody answers.
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/client_remote/nibble_process.h"
#include "tests/client_remote/remote_cluster.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RetryTest, ACommandGoesThroughWhenTheCoordinatorComesBack) {
  RemoteCluster cluster;
  const std::string spec = RemoteCluster::SpecFile();
  cluster.Stop();
  NibbleProcess submit({"job", "submit", spec, "--timeout", "60s"});
  EXPECT_THAT(submit.ErrLine(), HasSubstr("does not answer yet; trying for 1m"));
  cluster.Start();
  EXPECT_EQ(submit.OutLine(), "train-1");
  EXPECT_EQ(submit.Wait(), 0);
  EXPECT_EQ(RemoteCluster::Json({"job", "list"})["jobs"].size(), 1u);
}

TEST(RetryTest, WithoutAnAnswerItSaysWhomItAskedAndFails) {
  RemoteCluster cluster;
  cluster.Stop();
  const Outcome listed = RemoteCluster::Nibble({"job", "list", "--timeout", "200ms"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.out, IsEmpty());
  EXPECT_THAT(listed.err, AllOf(HasSubstr("nibble job list: no answer from " + cluster.address()),
                                HasSubstr("NIBBLE_SERVER")));
  cluster.Start();
  setenv("NIBBLE_SERVER", "nonsense", 1);
  EXPECT_THAT(RemoteCluster::Nibble({"job", "list"}).err, HasSubstr("NIBBLE_SERVER: 'nonsense'"));
}

TEST(RetryTest, WithoutAClusterItSaysAtOnceInOneLineWhatToDo) {
  RemoteCluster cluster;
  cluster.Stop();
  const Outcome listed = RemoteCluster::Nibble({"job", "list"});
  EXPECT_EQ(listed.exit_code, 1);
  EXPECT_THAT(listed.out, IsEmpty());
  EXPECT_EQ(listed.err, "nibble job list: nothing listens at " + cluster.address() +
                            ": 'nibble cluster up' starts a cluster here, --server or "
                            "NIBBLE_SERVER names another, and --timeout waits for one that is "
                            "starting\n");
  cluster.Start();
}

TEST(RetryTest, TheServerMayBeNamedBeforeTheVerb) {
  RemoteCluster cluster;
  setenv("NIBBLE_SERVER", "127.0.0.1:1", 1);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--server", cluster.address(), "job", "list"},
                                             {"job", "--server", cluster.address(), "list"},
                                             {"job", "list", "--server", cluster.address()}}) {
    const Outcome listed = NibbleProcess::Run(words);
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
  }
}

// Loses the first answers to a pause: it was carried out, and the caller does not know.
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
    std::lock_guard lock(mutex_);
    ids.push_back(request->request_id());
    const auto author = context->client_metadata().find("nibble-author");
    has_author = author != context->client_metadata().end() && !author->second.empty();
    if (ids.size() <= kLost) return {grpc::StatusCode::UNAVAILABLE, "stopping"};
    response->mutable_job()->set_id(request->job());
    return grpc::Status::OK;
  }

  // Read when no call is under way.
  std::vector<std::string> ids;
  bool has_author = false;

 private:
  std::mutex mutex_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(RetryTest, AChangeIsRepeatedUnderOneRequestIdAndEachCommandHasItsOwn) {
  ForgetfulCoordinator coordinator;
  EXPECT_EQ(RemoteCluster::Nibble({"job", "pause", "train-1"}).exit_code, 0);
  ASSERT_EQ(coordinator.ids.size(), 3u);
  EXPECT_EQ(std::set<std::string>(coordinator.ids.begin(), coordinator.ids.end()).size(), 1u);
  EXPECT_EQ(coordinator.ids[0].size(), 32u);
  EXPECT_TRUE(coordinator.has_author);
  EXPECT_EQ(RemoteCluster::Nibble({"job", "pause", "train-1"}).exit_code, 0);
  EXPECT_NE(coordinator.ids[3], coordinator.ids[0]);
}

}  // namespace
}  // namespace nibble
