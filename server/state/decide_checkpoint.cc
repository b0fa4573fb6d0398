#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/state/decide.h"
#include "server/state/decide_tools.h"
#include "server/state/find_checkpoint.h"

namespace nibble {
namespace {

using decide::Once;

// body(reference with its attempt, update, response) of a mutation of one checkpoint.
template <class Response, class Request, class Body>
absl::StatusOr<Decision<Response>> OfCheckpoint(const State& state, const Request& request,
                                                const Caller& caller, Body body) {
  return Once<Response>(state, request, caller, [&](v1::Update& update, Response& response) {
    const absl::StatusOr<v1::CheckpointRef> ref = FindCheckpoint(state, request.ref());
    if (!ref.ok()) return ref.status();
    body(*ref, update, response);
    return absl::OkStatus();
  });
}

// Returns the number of the task.
int64_t AddTask(const State& state, const v1::CheckpointRef& ref, v1::CheckpointTaskKind kind,
                const std::string& destination, v1::Update& update) {
  const v1::Checkpoint& checkpoint = *state.FindCheckpoint(ref);
  v1::CheckpointTaskSet& set = *update.add_facts()->mutable_checkpoint_task_set();
  *set.mutable_ref() = ref;
  v1::CheckpointTask& task = *set.mutable_task();
  task.set_number(checkpoint.tasks().empty() ? 1 : checkpoint.tasks().rbegin()->number() + 1);
  task.set_kind(kind);
  task.set_destination(destination);
  task.set_state(v1::CHECKPOINT_TASK_STATE_REQUESTED);
  task.set_author(update.author());
  task.set_requested_unix_ms(update.time_unix_ms());
  return task.number();
}

void AddPin(const v1::CheckpointRef& ref, bool pinned, v1::Update& update) {
  v1::CheckpointPinSet& set = *update.add_facts()->mutable_checkpoint_pin_set();
  *set.mutable_ref() = ref;
  set.set_pin(update.author());
  set.set_pinned(pinned);
}

}  // namespace

absl::StatusOr<Decision<v1::VerifyCheckpointResponse>> Decide(
    const State& state, const v1::VerifyCheckpointRequest& request, const Caller& caller) {
  return OfCheckpoint<v1::VerifyCheckpointResponse>(
      state, request, caller,
      [&](const v1::CheckpointRef& ref, v1::Update& update,
          v1::VerifyCheckpointResponse& response) {
        *response.mutable_ref() = ref;
        response.set_task(AddTask(state, ref, v1::CHECKPOINT_TASK_KIND_VERIFY, "", update));
      });
}

absl::StatusOr<Decision<v1::ExportCheckpointResponse>> Decide(
    const State& state, const v1::ExportCheckpointRequest& request, const Caller& caller) {
  if (!absl::StartsWith(request.destination(), "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination: '", request.destination(), "' is not an absolute path"));
  }
  return OfCheckpoint<v1::ExportCheckpointResponse>(
      state, request, caller,
      [&](const v1::CheckpointRef& ref, v1::Update& update,
          v1::ExportCheckpointResponse& response) {
        *response.mutable_ref() = ref;
        response.set_task(
            AddTask(state, ref, v1::CHECKPOINT_TASK_KIND_EXPORT, request.destination(), update));
      });
}

absl::StatusOr<Decision<v1::PinCheckpointResponse>> Decide(const State& state,
                                                           const v1::PinCheckpointRequest& request,
                                                           const Caller& caller) {
  return OfCheckpoint<v1::PinCheckpointResponse>(
      state, request, caller,
      [](const v1::CheckpointRef& ref, v1::Update& update, v1::PinCheckpointResponse& response) {
        *response.mutable_checkpoint()->mutable_ref() = ref;
        AddPin(ref, true, update);
      });
}

absl::StatusOr<Decision<v1::UnpinCheckpointResponse>> Decide(
    const State& state, const v1::UnpinCheckpointRequest& request, const Caller& caller) {
  return OfCheckpoint<v1::UnpinCheckpointResponse>(
      state, request, caller,
      [](const v1::CheckpointRef& ref, v1::Update& update, v1::UnpinCheckpointResponse& response) {
        *response.mutable_checkpoint()->mutable_ref() = ref;
        AddPin(ref, false, update);
      });
}

absl::StatusOr<Decision<v1::DeleteCheckpointResponse>> Decide(
    const State& state, const v1::DeleteCheckpointRequest& request, const Caller& caller) {
  return OfCheckpoint<v1::DeleteCheckpointResponse>(
      state, request, caller,
      [&](const v1::CheckpointRef& ref, v1::Update& update,
          v1::DeleteCheckpointResponse& response) {
        *response.mutable_ref() = ref;
        v1::CheckpointDeleted& deleted = *update.add_facts()->mutable_checkpoint_deleted();
        *deleted.mutable_ref() = ref;
        deleted.set_reason(request.reason());
      });
}

}  // namespace nibble
