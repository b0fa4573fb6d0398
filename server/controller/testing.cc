#include "server/controller/testing.h"

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/store/rocks_store.h"

namespace nibble {

TestCoordinator::TestCoordinator(ControllerOptions options, std::string store)
    : options_(std::move(options)), directory_(std::move(store)) {
  if (options_.cluster.empty()) options_.cluster = "test";
  Open();
}

TestCoordinator::~TestCoordinator() {
  controller_.reset();
  store_.reset();
}

absl::StatusOr<std::unique_ptr<nibble::Store>> TestCoordinator::OpenStore() {
  if (directory_.empty()) return MemoryStore::Open(disk_, {.cluster = options_.cluster});
  RocksStoreOptions options;
  options.cluster = options_.cluster;
  return RocksStore::Open(directory_, options);
}

void TestCoordinator::Open() {
  auto opened = OpenStore();
  ASSERT_EQ(opened.status(), absl::OkStatus());
  store_ = std::make_unique<FaultyStore>(*std::move(opened));
  auto controller = Controller::Start(*store_, clock, options_,
                                      [this](const absl::Status& why) { stopped_ = why; });
  ASSERT_EQ(controller.status(), absl::OkStatus());
  controller_ = *std::move(controller);
}

void TestCoordinator::Restart() {
  controller_.reset();
  store_.reset();
  stopped_ = absl::OkStatus();
  Open();
}

void TestCoordinator::Tick() {
  for (int i = 0; i < 2; ++i) {
    controller_->Tick();
    controller_->Settle();
  }
}

std::string TestCoordinator::Spec(const std::string& name, int ranks, const std::string& more) {
  return absl::StrCat("name: ", name,
                      "\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
                      "data: {train: [corpus.txt], sequence: 128}\n"
                      "training: {steps: 1000, batch: 16}\n"
                      "optimizer: {warmup_steps: 10, decay_fraction: 0.2}\n"
                      "resources: {ranks: ",
                      ranks, "}\n", more);
}

std::string TestCoordinator::Submit(int ranks, const std::string& name, const std::string& more) {
  v1::SubmitJobRequest request;
  request.set_spec_yaml(Spec(name, ranks, more));
  const auto response = Do<v1::SubmitJobResponse>(request);
  EXPECT_EQ(response.status(), absl::OkStatus());
  return response.ok() ? response->job().id() : "";
}

v1::Job TestCoordinator::Job(const std::string& id) {
  v1::DescribeJobRequest request;
  request.set_job(id);
  const auto response = controller_->Read(request);
  EXPECT_EQ(response.status(), absl::OkStatus());
  return response.ok() ? response->job() : v1::Job();
}

TestWorker::TestWorker(TestCoordinator& coordinator, const std::string& name, int slots,
                       int64_t incarnation)
    : coordinator_(coordinator) {
  v1::WorkerIdentity& identity = *report.mutable_identity();
  identity.set_name(name);
  identity.set_incarnation(incarnation);
  identity.set_address(name + ":7000");
  identity.set_slots(slots);
  identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
  Reconnect();
}

void TestWorker::Reconnect() {
  auto session = coordinator_.controller().sessions().Open(
      [notified = notified_] { ++*notified; }, nullptr,
      [refused = refused_](const std::string&, const absl::Status& why) {
        refused->emplace_back(why.message());
      });
  ASSERT_EQ(session.status(), absl::OkStatus());
  session_ = *std::move(session);
  report.clear_number();
}

absl::Status TestWorker::Report() {
  report.set_number(report.number() + 1);
  auto answer = std::make_shared<std::promise<absl::Status>>();
  coordinator_.controller().reports().Take(
      session_, report, [answer](const absl::Status& status) { answer->set_value(status); });
  absl::Status status = answer->get_future().get();
  if (status.ok()) Fetch();
  return status;
}

void TestWorker::Fetch() { desired = coordinator_.controller().reports().Desired(session_); }

void TestWorker::Obey(int64_t step) {
  ASSERT_EQ(Report(), absl::OkStatus());
  report.clear_gangs();
  for (const v1::DesiredGang& gang : desired.gangs()) {
    v1::GangReport& own = *report.add_gangs();
    own.set_job(gang.job());
    own.set_attempt(gang.attempt());
    own.set_next_step(step);
    for (int32_t i = 0; i < gang.slots_size(); ++i) {
      own.add_ranks()->set_rank(gang.first_rank() + i);
    }
    own.set_phase(gang.command() == v1::GANG_COMMAND_STOP    ? v1::RANK_PHASE_STOPPED
                  : gang.command() == v1::GANG_COMMAND_PAUSE ? v1::RANK_PHASE_PAUSED
                                                             : v1::RANK_PHASE_RUNNING);
  }
  ASSERT_EQ(Report(), absl::OkStatus());
}

std::string TestWorker::RunJob(int ranks, int64_t step) {
  Obey();
  std::string job = coordinator_.Submit(ranks);
  coordinator_.Tick();
  Obey(step);
  return job;
}

void TestWorker::Store(int64_t step) {
  ASSERT_GT(desired.gangs_size(), 0);
  const v1::DesiredGang& gang = desired.gangs(0);
  for (int i = 0; i < gang.slots_size(); ++i) {
    v1::ShardReport& shard = *report.add_shards();
    shard.mutable_ref()->set_job(gang.job());
    shard.mutable_ref()->set_step(step);
    shard.mutable_ref()->set_attempt(gang.attempt());
    shard.set_rank(gang.first_rank() + i);
    shard.set_world(gang.world());
    shard.set_bytes(1000);
    shard.set_manifest_crc32c(7);
  }
  ASSERT_EQ(Report(), absl::OkStatus());
}

}  // namespace nibble
