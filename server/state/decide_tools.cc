#include "server/state/decide_tools.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "server/state/bounds.h"
#include "server/state/job_machine.h"
#include "server/state/limits.h"

namespace nibble::decide {
namespace {

uint32_t Fingerprint(const google::protobuf::Message& request) {
  const std::string bytes = request.SerializeAsString();
  return Crc32c(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

std::string MethodOf(const google::protobuf::Message& request) {
  return std::string(absl::StripSuffix(request.GetDescriptor()->name(), "Request"));
}

}  // namespace

v1::Update NextUpdate(const State& state, const Caller& caller) {
  v1::Update update;
  update.set_sequence(state.sequence() + 1);
  update.set_time_unix_ms(std::max<int64_t>(0, caller.now_unix_ms));
  update.set_author(caller.author);
  return update;
}

absl::StatusOr<const v1::JobRecord*> FindUnfinished(const State& state, const std::string& id) {
  const v1::JobRecord* const job = state.FindJob(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job: there is no '", id, "'"));
  if (IsFinished(job->state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job: ", id, " is finished: ", StateName(job->state())));
  }
  return job;
}

void Move(const std::string& job, v1::JobState from, v1::JobState to, std::string reason,
          v1::Update& update) {
  v1::JobMoved& moved = *update.add_facts()->mutable_job_moved();
  moved.set_job(job);
  moved.set_from(from);
  moved.set_to(to);
  moved.set_reason(OneLine(reason));
}

void End(const v1::JobRecord& job, v1::AttemptOutcome outcome, std::string reason,
         v1::Update& update) {
  v1::AttemptEnded& ended = *update.add_facts()->mutable_attempt_ended();
  ended.set_job(job.id());
  ended.set_attempt(job.attempt().number());
  ended.set_outcome(outcome);
  ended.set_reason(OneLine(reason));
}

MaybeUpdate Checked(const State& state, v1::Update update) {
  if (update.facts().empty()) return std::nullopt;
  absl::Status status = state.Validate(update);
  if (!status.ok()) return status;
  return update;
}

absl::StatusOr<bool> FindAnswer(const State& state, const google::protobuf::Message& request,
                                const std::string& request_id, const Caller& caller,
                                google::protobuf::Message& response) {
  absl::Status status = CheckRequestId(request_id);
  if (!status.ok()) return status;
  const v1::RequestRecord* const record = state.FindRequest(caller.author, request_id);
  if (record == nullptr) return false;
  if (record->method() != MethodOf(request) || record->fingerprint() != Fingerprint(request)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "request_id: '", request_id, "' was used for another request, a ", record->method()));
  }
  if (!response.ParseFromString(record->response())) {
    return absl::DataLossError(
        absl::StrCat("request_id: the answer kept for '", request_id, "' cannot be read"));
  }
  return true;
}

void KeepAnswer(const google::protobuf::Message& request, const std::string& request_id,
                const google::protobuf::Message& response, v1::Update& update) {
  v1::RequestRecord& record = *update.mutable_request();
  record.set_request_id(request_id);
  record.set_method(MethodOf(request));
  record.set_fingerprint(Fingerprint(request));
  record.set_response(response.SerializeAsString());
}

}  // namespace nibble::decide
