#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/decide.h"
#include "server/state/decide_gang.h"
#include "server/state/decide_tools.h"
#include "server/state/keys.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using decide::Once;

void SetMode(const std::string& worker, v1::WorkerMode mode, const std::string& reason,
             v1::Update& update) {
  v1::WorkerModeSet& set = *update.add_facts()->mutable_worker_mode_set();
  set.set_worker(worker);
  set.set_mode(mode);
  set.set_reason(reason);
}

absl::Status CheckExpected(const v1::Queue* queue, int64_t expected) {
  const int64_t revision = queue == nullptr ? 0 : queue->revision();
  if (expected == -1 || expected == revision) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("expected_revision: ", expected, " is not the queue's, ", revision));
}

}  // namespace

absl::StatusOr<Decision<v1::DrainWorkerResponse>> Decide(const State& state,
                                                         const v1::DrainWorkerRequest& request,
                                                         const Caller& caller) {
  return Once<v1::DrainWorkerResponse>(
      state, request, caller, [&](v1::Update& update, v1::DrainWorkerResponse& response) {
        response.mutable_worker()->mutable_identity()->set_name(request.worker());
        SetMode(request.worker(),
                request.cordon_only() ? v1::WORKER_MODE_CORDONED : v1::WORKER_MODE_DRAINING,
                request.reason(), update);
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::UncordonWorkerResponse>> Decide(
    const State& state, const v1::UncordonWorkerRequest& request, const Caller& caller) {
  return Once<v1::UncordonWorkerResponse>(
      state, request, caller, [&](v1::Update& update, v1::UncordonWorkerResponse& response) {
        response.mutable_worker()->mutable_identity()->set_name(request.worker());
        SetMode(request.worker(), v1::WORKER_MODE_OPEN, request.reason(), update);
        if (request.clear_flags()) {
          update.add_facts()->mutable_worker_flags_cleared()->set_worker(request.worker());
        }
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::SetQueueResponse>> Decide(const State& state,
                                                      const v1::SetQueueRequest& request,
                                                      const Caller& caller) {
  return Once<v1::SetQueueResponse>(
      state, request, caller, [&](v1::Update& update, v1::SetQueueResponse& response) {
        const v1::Queue* const known = state.FindQueue(request.queue().name());
        absl::Status status = CheckExpected(known, request.expected_revision());
        if (!status.ok()) return status;
        v1::Queue& queue = *update.add_facts()->mutable_queue_set()->mutable_queue();
        queue = request.queue();
        queue.set_revision(known == nullptr ? 1 : known->revision() + 1);
        *response.mutable_queue() = queue;
        return absl::OkStatus();
      });
}

absl::StatusOr<Decision<v1::DeleteQueueResponse>> Decide(const State& state,
                                                         const v1::DeleteQueueRequest& request,
                                                         const Caller& caller) {
  return Once<v1::DeleteQueueResponse>(
      state, request, caller, [&](v1::Update& update, v1::DeleteQueueResponse&) {
        const v1::Queue* const known = state.FindQueue(request.queue());
        if (known == nullptr) {
          return absl::NotFoundError(absl::StrCat("queue: there is no '", request.queue(), "'"));
        }
        absl::Status status = CheckExpected(known, request.expected_revision());
        if (!status.ok()) return status;
        update.add_facts()->mutable_queue_deleted()->set_queue(request.queue());
        return absl::OkStatus();
      });
}

MaybeUpdate DecideStart(const State& state, const std::string& cluster, const std::string& fresh_id,
                        bool restored, const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  if (state.sequence() == 0 || state.cluster() != cluster) {
    v1::ClusterNamed& named = *update.add_facts()->mutable_cluster_named();
    named.set_name(cluster);
    named.set_store_id(fresh_id);
    return decide::Checked(state, std::move(update));
  }
  const v1::StoreIdentity store = state.store();
  if (fresh_id.empty() || (!restored && !store.id().empty())) return std::nullopt;
  v1::StoreRestored& fact = *update.add_facts()->mutable_store_restored();
  fact.set_store_id(store.id().empty() ? fresh_id : store.id());
  fact.set_epoch(store.epoch() + 1);
  fact.set_reason(restored ? "started with --restored" : "made before stores had an identity");
  return decide::Checked(state, std::move(update));
}

MaybeUpdate DecideForget(const State& state, const Caller& caller) {
  if (static_cast<int64_t>(state.index().finished().size()) <= kMaxFinishedJobs) {
    return std::nullopt;
  }
  for (const auto& [when, job] : state.index().finished()) {
    v1::Update update = decide::NextUpdate(state, caller);
    update.add_facts()->mutable_job_forgotten()->set_job(job);
    // One that is held is left for later.
    if (state.Validate(update).ok()) return update;
  }
  return std::nullopt;
}

}  // namespace nibble
