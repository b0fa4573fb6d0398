#include "server/access/access_table.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "proto/grpc/reflection/v1/reflection.pb.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

// The services that the coordinator serves.
constexpr const char* kServed[] = {"nibble.v1.Coordinator", "nibble.v1.Access",
                                   "nibble.v1.WorkerLink", "grpc.health.v1.Health",
                                   "grpc.reflection.v1.ServerReflection"};

template <class Visit>
void ForEachCall(const Visit& visit) {
  for (const char* const name : kServed) {
    const ServiceDescriptor* const service =
        DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor& method = *service->method(i);
      visit(absl::StrCat("/", name, "/", method.name()), method);
    }
  }
}

bool HasField(const MethodDescriptor& method, const char* name) {
  return method.input_type()->FindFieldByName(name) != nullptr;
}

TEST(AccessTable, EveryCallOfEveryServiceHasOneRow) {
  // Links descriptors that nothing else here refers to.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  (void)grpc::reflection::v1::ServerReflectionRequest::descriptor();
  std::set<std::string> calls;
  ForEachCall([&](const std::string& call, const MethodDescriptor&) {
    EXPECT_NE(FindAccess(call), nullptr) << call;
    calls.insert(call);
  });
  calls.insert("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  std::set<std::string> rows;
  for (const AccessRow& row : AccessTable()) {
    EXPECT_TRUE(rows.insert(row.call).second) << row.call << " has two rows";
  }
  EXPECT_EQ(rows, calls);
  EXPECT_EQ(FindAccess("/nibble.v1.Coordinator/NoSuchCall"), nullptr);
}

TEST(AccessTable, ChangesNeedMoreThanAViewer) {
  ForEachCall([&](const std::string& call, const MethodDescriptor& method) {
    const AccessRow* const row = FindAccess(call);
    ASSERT_NE(row, nullptr) << call;
    if (HasField(method, "request_id")) {
      EXPECT_TRUE(row->change) << call;
    }
    if (row->change) {
      EXPECT_GT(row->role, v1::ROLE_VIEWER) << call;
    }
  });
}

TEST(AccessTable, ATraceNeedsWhatAChangeOfTheJobDoes) {
  const std::string call = "/nibble.v1.Coordinator/StreamLogs";
  v1::StreamLogsRequest request;
  EXPECT_EQ(FindAccess(call, &request)->role, v1::ROLE_VIEWER);
  request.set_trace_steps(2);
  const AccessRow* const row = FindAccess(call, &request);
  EXPECT_EQ(row->role, v1::ROLE_SUBMITTER);
  EXPECT_TRUE(row->own_job);
  EXPECT_EQ(row->scope, JobScope::kJob);
}

TEST(AccessTable, ASubmittersChangesOfJobsAreOfItsOwn) {
  ForEachCall([&](const std::string& call, const MethodDescriptor& method) {
    const AccessRow* const row = FindAccess(call);
    ASSERT_NE(row, nullptr) << call;
    const bool of_job = HasField(method, "job") || HasField(method, "ref");
    if (row->change && row->role == v1::ROLE_SUBMITTER && of_job) {
      EXPECT_TRUE(row->own_job) << call;
    }
    if (row->own_job) {
      EXPECT_TRUE(of_job) << call << ": the job cannot be found";
    }
  });
}

// A new call without a decision fails here.
TEST(AccessTable, EveryRowDecidesWhatACallerOfAProjectSees) {
  ForEachCall([&](const std::string& call, const MethodDescriptor& method) {
    const AccessRow* const row = FindAccess(call);
    ASSERT_NE(row, nullptr) << call;
    EXPECT_NE(row->scope, JobScope::kUndecided) << call;
    const bool of_job =
        HasField(method, "job") || HasField(method, "ref") || HasField(method, "checkpoint");
    // Orphans are jobs that the store does not know. The trash is listed of all jobs, too.
    const bool orphan = row->role == v1::ROLE_OPERATOR;
    const bool lists = call == "/nibble.v1.Coordinator/ListTrash";
    EXPECT_EQ(row->scope == JobScope::kJob, of_job && !orphan && !lists) << call;
    if (row->own_job) {
      EXPECT_EQ(row->scope, JobScope::kJob) << call;
    }
    if (row->change && row->role == v1::ROLE_OPERATOR) {
      EXPECT_EQ(row->scope, JobScope::kCluster) << call;
    }
  });
}

TEST(AccessTable, OnlyHealthIsForEverybody) {
  for (const AccessRow& row : AccessTable()) {
    EXPECT_EQ(row.role == v1::ROLE_UNSPECIFIED,
              absl::string_view(row.call).substr(0, 16) == "/grpc.health.v1.")
        << row.call;
  }
}

TEST(Roles, AnOperatorIncludesASubmitterIncludesAViewerAndAWorkerIsApart) {
  const v1::Role roles[] = {v1::ROLE_UNSPECIFIED, v1::ROLE_VIEWER, v1::ROLE_SUBMITTER,
                            v1::ROLE_OPERATOR, v1::ROLE_WORKER};
  const bool may[5][5] = {
      // needed:  nobody viewer submitter operator worker
      {true, false, false, false, false},  // nobody
      {true, true, false, false, false},   // viewer
      {true, true, true, false, false},    // submitter
      {true, true, true, true, false},     // operator
      {true, false, false, false, true},   // worker
  };
  for (int has = 0; has < 5; ++has) {
    for (int needs = 0; needs < 5; ++needs) {
      EXPECT_EQ(CheckRole({"/call", roles[needs]}, roles[has], "ann").ok(), may[has][needs])
          << RoleText(roles[has]) << " for " << RoleText(roles[needs]);
    }
  }
  EXPECT_EQ(CheckRole({"/a/B", v1::ROLE_SUBMITTER}, v1::ROLE_VIEWER, "ann").message(),
            "/a/B: ann is viewer; allowed: submitter and above");
}

TEST(Roles, AWorkerMayOnlyDrainAndReturnItselfAndSeeHowFarThatIs) {
  std::set<std::string> calls;
  for (const AccessRow& row : AccessTable()) {
    if (row.role == v1::ROLE_UNSPECIFIED || !CheckRole(row, v1::ROLE_WORKER, "w1").ok()) continue;
    calls.insert(row.call);
  }
  EXPECT_EQ(calls,
            (std::set<std::string>{
                "/nibble.v1.Coordinator/DescribeWorker", "/nibble.v1.Coordinator/DrainWorker",
                "/nibble.v1.Coordinator/UncordonWorker", "/nibble.v1.WorkerLink/Connect"}));
  const AccessRow& drain = *FindAccess("/nibble.v1.Coordinator/DrainWorker");
  v1::DrainWorkerRequest own;
  own.set_worker("w1");
  EXPECT_EQ(CheckOwnWorker(drain, "w1", &own), absl::OkStatus());
  v1::DrainWorkerRequest other;
  other.set_worker("w2");
  EXPECT_EQ(CheckOwnWorker(drain, "w1", &other).message(),
            "/nibble.v1.Coordinator/DrainWorker: the caller is worker w1 and names 'w2'; allowed "
            "of a worker: itself");
  EXPECT_FALSE(CheckOwnWorker(drain, "w1", nullptr).ok());
  EXPECT_FALSE(CheckOwnWorker(drain, "w1", &v1::DrainWorkerRequest::default_instance()).ok());
  const AccessRow& uncordon = *FindAccess("/nibble.v1.Coordinator/UncordonWorker");
  v1::UncordonWorkerRequest back;
  back.set_worker("w1");
  EXPECT_EQ(CheckOwnWorker(uncordon, "w1", &back), absl::OkStatus());
  back.set_clear_flags(true);
  EXPECT_EQ(CheckOwnWorker(uncordon, "w1", &back).message(),
            "/nibble.v1.Coordinator/UncordonWorker: clear_flags: w1 is worker; allowed: operator");
}

TEST(Subjects, ARequestIsAboutWhatItNames) {
  v1::CancelJobRequest cancel;
  cancel.set_job("train-7");
  EXPECT_EQ(JobOfRequest(cancel), "train-7");
  EXPECT_EQ(SubjectOf(cancel), "job train-7");
  v1::DeleteCheckpointRequest remove;
  remove.mutable_ref()->set_job("train-7");
  remove.mutable_ref()->set_step(300);
  EXPECT_EQ(JobOfRequest(remove), "train-7");
  EXPECT_EQ(SubjectOf(remove), "job train-7 step 300");
  v1::ForkJobRequest fork;
  fork.mutable_checkpoint()->set_job("train-7");
  EXPECT_EQ(JobOfRequest(fork), "train-7");
  v1::SubmitJobResponse submitted;
  submitted.mutable_job()->set_id("train-8");
  EXPECT_EQ(SubjectOf(submitted), "job train-8");
  v1::DrainWorkerRequest drain;
  drain.set_worker("w1");
  EXPECT_EQ(SubjectOf(drain), "worker w1");
  v1::SetQueueRequest queue;
  queue.mutable_queue()->set_name("nights");
  EXPECT_EQ(SubjectOf(queue), "queue nights");
  v1::RevokeTokenRequest revoke;
  revoke.set_id("0123456789ab");
  EXPECT_EQ(SubjectOf(revoke), "token 0123456789ab");
  EXPECT_EQ(SubjectOf(v1::ListJobsRequest()), "");
  EXPECT_EQ(JobOfRequest(v1::SubmitJobRequest()), "");
}

}  // namespace
}  // namespace nibble
