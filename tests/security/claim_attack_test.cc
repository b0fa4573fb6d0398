// A worker with a certificate of its own that reports what it was not given, or what no worker is.
// It has no part in the job of another worker; the fields of its reports are of a program that
// wants to break the coordinator.
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "server/controller/testing.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kConnectCall[] = "/nibble.v1.WorkerLink/Connect";

// The stream of a daemon, report by report.
class RawDaemon {
 public:
  RawDaemon(const SecureCoordinator& coordinator, const std::string& name)
      : name_(name),
        stub_(v1::WorkerLink::NewStub(
            coordinator.Connect(coordinator.authority().Issue(name, {PeerKind::kWorker, name})))) {
    v1::WorkerIdentity& identity = *report.mutable_identity();
    identity.set_name(name);
    identity.set_incarnation(1);
    identity.set_address("127.0.0.1:7000");
    identity.set_slots(1);
    identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
    Open();
  }
  ~RawDaemon() {
    context_->TryCancel();
    (void)stream_->Finish();
  }

  const std::string& name() const { return name_; }
  void Open() {
    if (context_ != nullptr) {
      context_->TryCancel();
      (void)stream_->Finish();
    }
    context_ = CallWith("");
    stream_ = stub_->Connect(context_.get());
    number_ = 0;
  }
  // Sends `report` and awaits the answer to it. False: the stream is over.
  bool Send() {
    report.set_number(++number_);
    if (!stream_->Write(report)) return false;
    do {
      if (!stream_->Read(&desired)) return false;
    } while (desired.answered() < number_);
    return true;
  }
  // Sends `report` in a new stream, which it ends.
  grpc::Status Refused() {
    Open();
    EXPECT_FALSE(Send());
    const grpc::Status status = stream_->Finish();
    context_ = CallWith("");
    stream_ = stub_->Connect(context_.get());
    number_ = 0;
    return status;
  }

  v1::ConnectRequest report;
  v1::ConnectResponse desired;

 private:
  const std::string name_;
  const std::unique_ptr<v1::WorkerLink::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
  int64_t number_ = 0;
};

// A job with one rank on one of two workers. Nobody is ordered to make copies.
class ClaimAttackTest : public testing::Test {
 protected:
  ClaimAttackTest() {
    EXPECT_TRUE(one_.Send() && two_.Send());
    v1::SubmitJobRequest request;
    request.set_request_id("request-1");
    request.set_spec_yaml(TestCoordinator::Spec("train", 1));
    v1::SubmitJobResponse submitted;
    EXPECT_TRUE(stub_->SubmitJob(CallWith(operator_).get(), request, &submitted).ok());
    job_ = submitted.job().id();
    EXPECT_TRUE(Eventually([this] {
      EXPECT_TRUE(one_.Send() && two_.Send());
      return one_.desired.gangs_size() + two_.desired.gangs_size() == 1;
    }));
    runner_ = one_.desired.gangs_size() == 1 ? &one_ : &two_;
    evil_ = runner_ == &one_ ? &two_ : &one_;
    gang_.set_job(job_);
    gang_.set_attempt(1);
    gang_.set_phase(v1::RANK_PHASE_RUNNING);
    gang_.set_next_step(10);
    *runner_->report.add_gangs() = gang_;
    EXPECT_TRUE(runner_->Send());
    shard_.mutable_ref()->set_job(job_);
    shard_.mutable_ref()->set_step(10);
    shard_.mutable_ref()->set_attempt(1);
    shard_.set_world(1);
    shard_.set_bytes(1000);
    shard_.set_manifest_crc32c(7);
  }

  v1::Job Job() {
    v1::DescribeJobRequest request;
    request.set_job(job_);
    v1::DescribeJobResponse response;
    EXPECT_TRUE(stub_->DescribeJob(CallWith(operator_).get(), request, &response).ok());
    return response.job();
  }
  // The checkpoint of step 10, which the runner has reported.
  v1::DescribeCheckpointResponse Checkpoint(int64_t step = 10) {
    v1::DescribeCheckpointRequest request;
    request.mutable_ref()->set_job(job_);
    request.mutable_ref()->set_step(step);
    v1::DescribeCheckpointResponse response;
    (void)stub_->DescribeCheckpoint(CallWith(operator_).get(), request, &response);
    return response;
  }
  void Commit() {
    *runner_->report.add_shards() = shard_;
    ASSERT_TRUE(runner_->Send());
    ASSERT_EQ(Checkpoint().checkpoint().state(), v1::CHECKPOINT_STATE_COMMITTED);
  }
  void ExpectUnharmed() {
    EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
    EXPECT_EQ(Job().attempts(), 1);
    const v1::DescribeCheckpointResponse checkpoint = Checkpoint();
    EXPECT_EQ(checkpoint.checkpoint().state(), v1::CHECKPOINT_STATE_COMMITTED);
    ASSERT_EQ(checkpoint.shards_size(), 1);
    EXPECT_THAT(checkpoint.shards(0).holders(), ElementsAre(runner_->name()));
  }
  // Sends the claim twice: in the first report of a stream it may be that of an earlier stream.
  void Claim() {
    ASSERT_TRUE(evil_->Send());
    ASSERT_TRUE(evil_->Send());
  }
  bool Audited(const std::string& subject) {
    return coordinator_.Audited({"call", kConnectCall, "who", evil_->name(), "role", "worker",
                                 "peer", "nibble://worker/" + evil_->name(), "subject", subject,
                                 "outcome", "refused", "code", "PERMISSION_DENIED"});
  }

  SecureCoordinator coordinator_{3600, {"--copies=1"}};
  const std::string operator_ = coordinator_.Bootstrap();
  const std::unique_ptr<v1::Coordinator::Stub> stub_ =
      v1::Coordinator::NewStub(coordinator_.Connect());
  RawDaemon one_{coordinator_, "w1"};
  RawDaemon two_{coordinator_, "w2"};
  RawDaemon* runner_ = nullptr;
  RawDaemon* evil_ = nullptr;
  std::string job_;
  v1::GangReport gang_;    // as the runner reports it
  v1::ShardReport shard_;  // of its rank
};

TEST_F(ClaimAttackTest, RanksOfAnotherWorkerCannotBeEnded) {
  Commit();
  for (const v1::RankPhase phase :
       {v1::RANK_PHASE_FAILED, v1::RANK_PHASE_SUCCEEDED, v1::RANK_PHASE_STOPPED}) {
    *evil_->report.add_gangs() = gang_;
    evil_->report.mutable_gangs(0)->set_phase(phase);
    Claim();
    evil_->report.clear_gangs();
  }
  EXPECT_TRUE(Audited("job " + job_));
  // Of an attempt that is over, or was never launched.
  for (const int64_t attempt : {0, 2, 99}) {
    *evil_->report.add_gangs() = gang_;
    evil_->report.mutable_gangs(0)->set_attempt(attempt);
    evil_->report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
    Claim();
    evil_->report.clear_gangs();
  }
  ExpectUnharmed();
}

TEST_F(ClaimAttackTest, AWorkerReportsItsOwnRanksAlone) {
  // The runner has rank 0 and no other.
  runner_->report.mutable_gangs(0)->add_ranks()->set_rank(1);
  runner_->report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  ASSERT_TRUE(runner_->Send());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(coordinator_.Audited({"who", runner_->name(), "subject", "job " + job_, "outcome",
                                    "refused", "code", "PERMISSION_DENIED"}));
}

TEST_F(ClaimAttackTest, AShardIsReportedFirstByTheWorkerOfItsRank) {
  *evil_->report.add_shards() = shard_;
  evil_->report.mutable_shards(0)->set_manifest_crc32c(666);
  Claim();
  EXPECT_EQ(Checkpoint().shards_size(), 0);
  EXPECT_TRUE(Audited(absl::StrCat("job ", job_, " step 10")));
  // Nor under another attempt, another number of ranks, or after the last step.
  evil_->report.mutable_shards(0)->mutable_ref()->set_attempt(2);
  Claim();
  runner_->report.clear_shards();
  *runner_->report.add_shards() = shard_;
  runner_->report.mutable_shards(0)->set_world(2);
  *runner_->report.add_shards() = shard_;
  runner_->report.mutable_shards(1)->mutable_ref()->set_step(1'000'000);
  ASSERT_TRUE(runner_->Send());
  EXPECT_EQ(Checkpoint().shards_size(), 0);
  EXPECT_EQ(Checkpoint(1'000'000).shards_size(), 0);
  runner_->report.clear_shards();
  evil_->report.clear_shards();
  Commit();
  ExpectUnharmed();
}

// With one copy wanted and there, another one is ignored, as an honest worker may have it.
TEST_F(ClaimAttackTest, ACopyThatWasNotOrderedDoesNotCount) {
  Commit();
  *evil_->report.add_shards() = shard_;
  evil_->report.set_all_shards(true);
  Claim();
  ExpectUnharmed();
  // Nor by a store of its own invention.
  for (const auto& [id, epoch] : std::vector<std::pair<std::string, int64_t>>{
           {std::string(32, 'a'), 1}, {evil_->desired.store().id(), 9}, {"", 0}}) {
    evil_->report.mutable_shards(0)->mutable_store()->set_id(id);
    evil_->report.mutable_shards(0)->mutable_store()->set_epoch(epoch);
    Claim();
    ExpectUnharmed();
  }
}

TEST_F(ClaimAttackTest, AnothersCopyIsNotReportedDamaged) {
  Commit();
  v1::DamagedShard& damage = *evil_->report.add_damaged();
  *damage.mutable_ref() = shard_.ref();
  damage.set_holder(runner_->name());
  damage.set_detail("a byte is wrong");
  Claim();
  ExpectUnharmed();
  EXPECT_TRUE(Audited(absl::StrCat("job ", job_, " step 10")));
}

TEST_F(ClaimAttackTest, ATaskOfAnotherIsNotEnded) {
  Commit();
  v1::VerifyCheckpointRequest request;
  request.set_request_id("request-2");
  *request.mutable_ref() = shard_.ref();
  v1::VerifyCheckpointResponse requested;
  ASSERT_TRUE(stub_->VerifyCheckpoint(CallWith(operator_).get(), request, &requested).ok());
  v1::TaskReport& task = *evil_->report.add_tasks();
  *task.mutable_ref() = shard_.ref();
  task.set_task(1);
  task.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
  task.set_damaged(true);
  Claim();
  ExpectUnharmed();
  ASSERT_EQ(Checkpoint().checkpoint().tasks_size(), 1);
  EXPECT_EQ(Checkpoint().checkpoint().tasks(0).state(), v1::CHECKPOINT_TASK_STATE_REQUESTED);
  EXPECT_TRUE(Audited(absl::StrCat("job ", job_, " step 10")));
}

TEST_F(ClaimAttackTest, AKnownJobIsNobodysOrphan) {
  Commit();
  v1::Orphan& orphan = *evil_->report.add_orphans();
  orphan.set_job(job_);
  *orphan.mutable_store() = evil_->desired.store();
  orphan.set_attempt(99);
  orphan.set_running(true);
  *orphan.add_shards() = shard_;
  evil_->report.set_all_shards(true);
  Claim();
  ExpectUnharmed();
  EXPECT_TRUE(Audited("job " + job_));
}

// A worker shows what a store has sent it; the store's MAC tells it from what a worker invents.
TEST_F(ClaimAttackTest, AStateOfTheStoreThatItHasNotIssuedIsRefused) {
  Commit();
  const v1::StoreIdentity issued = evil_->desired.store();
  EXPECT_FALSE(issued.mac().empty());
  const auto claim = [&](const v1::StoreIdentity& seen) {
    *evil_->report.mutable_store() = seen;
    Claim();
    EXPECT_EQ(evil_->desired.store().epoch(), issued.epoch());
    EXPECT_EQ(evil_->desired.store().epoch_id(), issued.epoch_id());
    ExpectUnharmed();
  };
  v1::StoreIdentity forged = issued;
  forged.set_sequence(issued.sequence() + 1000);
  claim(forged);
  forged = issued;
  forged.set_epoch(issued.epoch() + 1000);
  claim(forged);
  forged = issued;
  forged.set_life(std::string(32, '0'));
  claim(forged);
  forged.set_epoch_id(std::string(32, '0'));
  claim(forged);
  forged.clear_mac();
  claim(forged);
  EXPECT_TRUE(Audited("worker " + evil_->name()));
}

TEST_F(ClaimAttackTest, EveryFieldOfAReportIsBoundedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string mib(1 << 20, 'x');
  struct Attack {
    const char* problem;  // named in the answer
    std::function<void(v1::ConnectRequest&)> change;
  };
  const auto identity = [](const char* problem,
                           const std::function<void(v1::WorkerIdentity&)>& change) {
    return Attack{problem,
                  [change](v1::ConnectRequest& report) { change(*report.mutable_identity()); }};
  };
  const auto address = [&identity](const char* text) {
    return identity("identity.address: '",
                    [text](v1::WorkerIdentity& worker) { worker.set_address(text); });
  };
  const std::string own = coordinator_.process().address();
  const std::vector<Attack> attacks = {
      identity("identity.name: 'w\\n", [](auto& worker) { worker.set_name("w\n1"); }),
      identity("identity.name: 'xxx", [&](auto& worker) { worker.set_name(mib); }),
      identity("identity.name: ''", [](auto& worker) { worker.set_name(""); }),
      identity("identity.incarnation: -1", [](auto& worker) { worker.set_incarnation(-1); }),
      identity("identity.incarnation: 0", [](auto& worker) { worker.set_incarnation(0); }),
      identity("identity.slots: -1", [](auto& worker) { worker.set_slots(-1); }),
      identity("identity.slots: 0", [](auto& worker) { worker.set_slots(0); }),
      identity("identity.slots: 100000", [](auto& worker) { worker.set_slots(100'000); }),
      identity("identity.version: 'xxx", [&](auto& worker) { worker.set_version(mib); }),
      identity("identity.version: '1\\x1b", [](auto& worker) { worker.set_version("1\x1b[2J"); }),
      identity("identity.labels: has 100000 entries",
               [](auto& worker) {
                 for (int i = 0; i < 100'000; ++i) {
                   worker.add_labels()->set_key(absl::StrCat("k", i));
                 }
               }),
      identity("identity.labels[0].key: 'xxx", [&](auto& w) { w.add_labels()->set_key(mib); }),
      identity("identity.labels[0].value: 'a\\t",
               [](auto& worker) {
                 worker.add_labels()->set_key("rack");
                 worker.mutable_labels(0)->set_value("a\tb");
               }),
      identity("identity.labels: the key '' is empty", [](auto& worker) { worker.add_labels(); }),
      identity("identity.labels: the key 'a' is empty or a duplicate",
               [](auto& worker) {
                 for (int i = 0; i < 2; ++i) worker.add_labels()->set_key("a");
               }),
      // Of a newer worker, a value that is not known counts as unset.
      identity(
          "identity.hardware.device: 0",
          [](auto& worker) { worker.mutable_hardware()->set_device(static_cast<v1::Device>(99)); }),
      identity("identity.hardware.memory_bytes: -1",
               [](auto& worker) { worker.mutable_hardware()->set_memory_bytes(-1); }),
      identity("identity.hardware.store_bytes: -5",
               [](auto& worker) { worker.mutable_hardware()->set_store_bytes(-5); }),
      identity("identity.hardware.model: 'a\\n",
               [](auto& worker) { worker.mutable_hardware()->set_model("a\nb"); }),
      identity("identity.topology.slots: has 100000 entries",
               [](auto& worker) {
                 for (int i = 0; i < 100'000; ++i) worker.mutable_topology()->add_slots();
               }),
      identity("identity.topology.slots[0].numa_node: -7",
               [](auto& worker) { worker.mutable_topology()->add_slots()->set_numa_node(-7); }),
      identity("identity.topology.links[0].other: 9999",
               [](auto& worker) { worker.mutable_topology()->add_links()->set_other(9999); }),
      identity("identity.topology.nodes[0].cores: 'xxx",
               [&](auto& worker) { worker.mutable_topology()->add_nodes()->set_cores(mib); }),
      address("nowhere"),
      address("http://w1:7000"),
      address("w1:7000/../x"),
      address("0.0.0.0:7000"),
      address("169.254.169.254:80"),
      address("[fe80::1]:7000"),
      address("224.0.0.1:7000"),
      address(own.c_str()),
      identity("identity.http_address: '169.254.169.254:80' is link-local",
               [](auto& worker) { worker.set_http_address("169.254.169.254:80"); }),
      {"desired_number: -9", [](auto& report) { report.set_desired_number(-9); }},
      {"cluster: 'x\\n", [](auto& report) { report.set_cluster("x\ny"); }},
      {"store.epoch: -1", [](auto& report) { report.mutable_store()->set_epoch(-1); }},
      {"gangs[0].next_step: -1", [](auto& report) { report.add_gangs()->set_next_step(-1); }},
      {"gangs[0].ranks[0].work_seconds: nan",
       [nan](auto& report) { report.add_gangs()->add_ranks()->set_work_seconds(nan); }},
      {"gangs[0].samples[0].step_seconds: nan",
       [nan](auto& report) { report.add_gangs()->add_samples()->set_step_seconds(nan); }},
      {"gangs[0].detail: 'xxx", [&](auto& report) { report.add_gangs()->set_detail(mib); }},
      {"gangs: has 2000 entries",
       [](auto& report) {
         for (int i = 0; i < 2000; ++i) report.add_gangs();
       }},
      {"shards[0].rank: -1", [](auto& report) { report.add_shards()->set_rank(-1); }},
      {"shards[0].bytes: -1", [](auto& report) { report.add_shards()->set_bytes(-1); }},
      {"tasks[0].task: -1", [](auto& report) { report.add_tasks()->set_task(-1); }},
      {"damaged[0].rank: 99999999",
       [](auto& report) { report.add_damaged()->set_rank(99'999'999); }},
      {"orphans[0].since_ms: -1", [](auto& report) { report.add_orphans()->set_since_ms(-1); }},
      {"orphans: has 10001 entries",
       [](auto& report) {
         for (int i = 0; i < 10'001; ++i) report.add_orphans();
       }},
  };
  for (const Attack& attack : attacks) {
    const v1::ConnectRequest honest = evil_->report;
    attack.change(evil_->report);
    const grpc::Status status = evil_->Refused();
    evil_->report = honest;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT)
        << attack.problem << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(attack.problem));
    EXPECT_LT(status.error_message().size(), 500u) << attack.problem;
    bool audited = false;
    for (const auto& entry : coordinator_.Audit()) {
      audited = audited || (entry.value("outcome", "") == "refused" &&
                            entry.value("who", "") == evil_->name() &&
                            entry.value("reason", "").find(attack.problem) != std::string::npos);
    }
    EXPECT_TRUE(audited) << attack.problem;
  }
  EXPECT_TRUE(coordinator_.process().Lives());
  EXPECT_TRUE(evil_->Send());  // an honest report
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace nibble
