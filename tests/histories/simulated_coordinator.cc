#include "tests/histories/simulated_coordinator.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/controller.h"
#include "server/state/state.h"

namespace nibble {
namespace {

constexpr char kCluster[] = "histories";

std::unique_ptr<MemoryStore> OpenDisk(const Disk& disk) {
  auto store = MemoryStore::Open(disk, {.cluster = kCluster});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Stores get their ids from here, whatever the option is called.
template <class Options>
void SetIds(const SimulatedCoordinator::Ids& ids, Options& options) {
  if constexpr (requires { options.fresh_id; }) {
    options.fresh_id = ids;
  } else {
    options.fresh_store_id = ids();
  }
}

}  // namespace

Disk CopyOf(const Disk& disk) {
  const auto from = OpenDisk(disk);
  const auto content = store_testing::ReadAll(*from);
  EXPECT_TRUE(content.ok()) << content.status();
  const auto copy = std::make_shared<MemoryDisk>();
  const auto to = OpenDisk(copy);
  const uint64_t last = from->Info().last_sequence;
  for (uint64_t sequence = 1; sequence <= last; ++sequence) {
    StoreBatch batch;
    const auto record = content->journal.find(sequence);
    if (record != content->journal.end()) batch.record = record->second;
    if (sequence == last) {
      for (const auto& [key, value] : content->entities) {
        batch.changes.push_back({key.first, key.second, value});
      }
    }
    EXPECT_TRUE(to->Commit(std::move(batch)).ok());
  }
  return copy;
}

SimulatedCoordinator::SimulatedCoordinator(Disk disk, const ManualClock& clock, Ids ids,
                                           bool restored)
    : disk_(std::move(disk)), ids_(std::move(ids)), store_(OpenDisk(disk_)) {
  ControllerOptions options;
  options.cluster = kCluster;
  options.restored = restored;
  options.copies = 2;
  options.switch_wait_ms = 0;
  SetIds(ids_, options);
  auto controller = Controller::Start(*store_, clock, options, [](const absl::Status&) {});
  EXPECT_TRUE(controller.ok()) << controller.status();
  controller_ = *std::move(controller);
}

SimulatedCoordinator::~SimulatedCoordinator() {
  controller_.reset();
  store_.reset();
}

bool SimulatedCoordinator::replaced() const { return !controller_->Health().ok(); }

int64_t SimulatedCoordinator::epoch() const {
  return controller_->Inspect([](const State& state) { return state.store().epoch(); });
}

int64_t SimulatedCoordinator::CommittedStep(const std::string& job) const {
  return controller_->Inspect([&](const State& state) {
    int64_t latest = -1;
    for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(job)) {
      if (checkpoint->state() != v1::CHECKPOINT_STATE_COMMITTED) continue;
      latest = std::max(latest, checkpoint->ref().step());
    }
    return latest;
  });
}

std::string SimulatedCoordinator::Catalogue(const std::string& job) const {
  return controller_->Inspect([&](const State& state) {
    std::string text;
    for (const v1::Checkpoint* checkpoint : state.CheckpointsOf(job)) {
      absl::StrAppend(&text, "step ", checkpoint->ref().step(), ", attempt ",
                      checkpoint->ref().attempt(), ", ",
                      v1::CheckpointState_Name(checkpoint->state()).substr(17),
                      checkpoint->left() ? ", left" : "");
      for (const v1::CheckpointShard* shard : state.ShardsOf(checkpoint->ref())) {
        absl::StrAppend(&text, ", rank ", shard->rank(), " on ",
                        absl::StrJoin(shard->holders(), " "));
      }
      text += "\n  ";
    }
    for (const v1::JobEvent* event : state.EventsOf(job)) {
      absl::StrAppend(&text, "event: ", event->text(), "\n  ");
    }
    return text;
  });
}

template <class Response, class Request>
absl::StatusOr<Response> SimulatedCoordinator::Do(Request request) {
  request.set_request_id(absl::StrCat("request-", ids_().substr(0, 8), "-", ++requests_));
  const auto answer = std::make_shared<std::promise<absl::StatusOr<Response>>>();
  controller_->requests().Change<Response>(
      request, "ann",
      [answer](absl::StatusOr<Response> response) { answer->set_value(std::move(response)); });
  return answer->get_future().get();
}

std::string SimulatedCoordinator::Submit(const std::string& spec) {
  v1::SubmitJobRequest request;
  request.set_spec_yaml(spec);
  const auto response = Do<v1::SubmitJobResponse>(request);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? response->job().id() : "";
}

void SimulatedCoordinator::MakeUpdates(const std::string& job, int count) {
  for (int i = 0; i < count; ++i) {
    v1::SetJobPriorityRequest request;
    request.set_job(job);
    request.set_priority(i % 2);
    (void)Do<v1::SetJobPriorityResponse>(request);
  }
}

void SimulatedCoordinator::Tick() {
  for (int i = 0; i < 2; ++i) {
    controller_->Tick();
    controller_->Settle();
  }
}

SimulatedCoordinator::Session SimulatedCoordinator::Connect() {
  auto session = controller_->sessions().Open(nullptr, nullptr, nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

absl::Status SimulatedCoordinator::Exchange(const Session& session,
                                            const v1::ConnectRequest& report,
                                            v1::ConnectResponse& desired) {
  const auto answer = std::make_shared<std::promise<absl::Status>>();
  controller_->reports().Take(session, report,
                              [answer](const absl::Status& status) { answer->set_value(status); });
  const absl::Status status = answer->get_future().get();
  if (status.ok()) desired = controller_->reports().Desired(session);
  return status;
}

}  // namespace nibble
