#include "server/controller/client_requests.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "server/controller/reads.h"
#include "server/state/decide.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Decides a request and moves the decision's answer to `response`.
template <class Request>
MaybeUpdate DecideAs(const ControllerContext& context, const State& state, const Message& message,
                     const Caller& caller, Message& response) {
  const auto& request = static_cast<const Request&>(message);
  NIBBLE_ASSIGN_OR_RETURN(auto decision, [&] {
    if constexpr (requires { Decide(state, request, caller, LiveProgress{}); }) {
      return Decide(state, request, caller, context.live.ProgressOf(request.job()));
    } else if constexpr (requires { Decide(state, request, caller, Evidence()); }) {
      return Decide(state, request, caller, context.orphans.Of(request.job()).evidence());
    } else if constexpr (requires { Decide(state, request, caller, Evidence(), 0); }) {
      return Decide(state, request, caller, context.orphans.Of(request.job()).evidence(),
                    context.options.orphan_grace_ms);
    } else if constexpr (requires { Decide(state, request, caller, LooseShards()); }) {
      return Decide(state, request, caller, context.trash.Of(request.ref().job()));
    } else {
      return Decide(state, request, caller);
    }
  }());
  // Checks that the types are the same.
  response.GetReflection()->Swap(&response, &decision.response);
  return std::move(decision.update);
}

using DecideAny = MaybeUpdate (*)(const ControllerContext&, const State&, const Message&,
                                  const Caller&, Message&);

// The decision of a request of this type; null if it is none of them.
template <class... Requests>
DecideAny FindAmong(const Descriptor* type) {
  DecideAny found = nullptr;
  ((type == Requests::descriptor() ? void(found = DecideAs<Requests>) : void()), ...);
  return found;
}

constexpr auto FindDecision =
    FindAmong<v1::SubmitJobRequest, v1::ForkJobRequest, v1::PauseJobRequest, v1::ResumeJobRequest,
              v1::CancelJobRequest, v1::KillJobRequest, v1::CheckpointJobRequest,
              v1::SetJobPriorityRequest, v1::SetJobRestartPolicyRequest, v1::SetRecipeRequest,
              v1::RollbackRecipeRequest, v1::VerifyCheckpointRequest, v1::ExportCheckpointRequest,
              v1::PinCheckpointRequest, v1::UnpinCheckpointRequest, v1::DeleteCheckpointRequest,
              v1::RestoreCheckpointRequest, v1::AdoptJobRequest, v1::RemoveOrphanRequest,
              v1::DrainWorkerRequest, v1::UncordonWorkerRequest, v1::SetQueueRequest,
              v1::DeleteQueueRequest>;

bool IsDryRun(const Message& request) {
  const FieldDescriptor* const field = request.GetDescriptor()->FindFieldByName("dry_run");
  return field != nullptr && request.GetReflection()->GetBool(request, field);
}

// The job whose recipe the request changes; empty if it changes none.
std::string JobOfRecipe(const Message& request) {
  const Descriptor* const type = request.GetDescriptor();
  if (type != v1::SetRecipeRequest::descriptor() &&
      type != v1::RollbackRecipeRequest::descriptor()) {
    return "";
  }
  return request.GetReflection()->GetString(request, type->FindFieldByName("job"));
}

// The response's field of this name, if it is set and of this type; else null.
template <class Part>
Part* PartOf(Message& response, const char* name) {
  const FieldDescriptor* const field = response.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->message_type() != Part::descriptor() ||
      !response.GetReflection()->HasField(response, field)) {
    return nullptr;
  }
  return static_cast<Part*>(response.GetReflection()->MutableMessage(&response, field));
}

void Run(const std::vector<SwitchAnswers::Answer>& answers) {
  for (const SwitchAnswers::Answer& answer : answers) answer();
}

}  // namespace

void ClientRequests::Complete(Message& response) const {
  context_.ledger.Read([&](const State& state) {
    const ReadContext context{.state = state,
                              .live = context_.live,
                              .now_ms = context_.clock.SteadyMs(),
                              .trash = &context_.trash};
    if (auto* const job = PartOf<v1::Job>(response, "job")) {
      const v1::JobRecord* const found = state.FindJob(job->id());
      if (found != nullptr) *job = JobNow(context, *found);
    } else if (auto* const checkpoint = PartOf<v1::Checkpoint>(response, "checkpoint")) {
      const v1::Checkpoint* const found = state.FindCheckpoint(checkpoint->ref());
      if (found != nullptr) *checkpoint = *found;
    } else if (auto* const worker = PartOf<v1::Worker>(response, "worker")) {
      const v1::WorkerRecord* const found = state.FindWorker(worker->identity().name());
      if (found != nullptr) *worker = WorkerNow(context, *found);
    }
  });
}

void ClientRequests::AnswerWhenSwitched(const std::string& job, std::shared_ptr<Message> response,
                                        Done done) {
  // SetRecipeResponse and RollbackRecipeResponse have both fields.
  const Descriptor& type = *response->GetDescriptor();
  const FieldDescriptor* const first_step = type.FindFieldByName("first_step");
  const int64_t revision =
      response->GetReflection()->GetInt64(*response, type.FindFieldByName("revision"));
  const auto answer = [this, job, response, revision, first_step,
                       done = std::make_shared<Done>(std::move(done))] {
    const google::protobuf::Reflection& reflection = *response->GetReflection();
    const absl::StatusOr<int64_t> step = context_.ledger.Read([&](const State& state) {
      return SwitchStep(state, job, revision, context_.live.ProgressOf(job),
                        reflection.GetInt64(*response, first_step));
    });
    if (step.ok()) reflection.SetInt64(response.get(), first_step, *step);
    (*done)(step.status());
  };
  const bool near = context_.ledger.Read([&](const State& state) {
    return SwitchIsNear(state, job, revision, context_.live.ProgressOf(job),
                        context_.live.StepSecondsOf(job), context_.options.switch_wait_ms);
  });
  const int64_t until_ms = context_.clock.SteadyMs() + context_.options.switch_wait_ms;
  if (context_.options.switch_wait_ms == 0 || !near ||
      !switches_.Add(job, revision, until_ms, answer)) {
    answer();
    return;
  }
  // Ranks may have switched before the answer was added.
  AnswerSettled(*context_.ledger.Shown(), job);
}

void ClientRequests::AnswerSettled(const State& state, const std::string& job) {
  Run(switches_.TakeSettled(state, job));
}

void ClientRequests::AnswerDue(int64_t now_ms) { Run(switches_.TakeDue(now_ms)); }

void ClientRequests::StopWaiting() { Run(switches_.Close()); }

void ClientRequests::Change(const Message& request, const std::string& author,
                            std::shared_ptr<Message> response, Done done,
                            const std::vector<std::string>& projects, bool is_worker) {
  const DecideAny decide = FindDecision(request.GetDescriptor());
  if (decide == nullptr) {
    return done(absl::InternalError(absl::StrCat(request.GetTypeName(), " is not a change")));
  }
  const std::set<std::string> taken_jobs = context_.orphans.Jobs();
  const Caller caller{.author = author,
                      .now_unix_ms = context_.clock.NowUnixMs(),
                      .taken_jobs = &taken_jobs,
                      .may_post = context_.options.may_post ? &context_.options.may_post : nullptr,
                      .projects = projects,
                      .is_worker = is_worker};
  context_.ledger.Change(
      [&](const State& state) { return decide(context_, state, request, caller, *response); },
      [this, response, job = JobOfRecipe(request), dry_run = IsDryRun(request),
       done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok() && !dry_run) {
          if (!job.empty()) return AnswerWhenSwitched(job, std::move(response), std::move(done));
          Complete(*response);
        }
        done(status);
      });
}

namespace {

// Far from the bounds of an update, which would refuse all of it, again and again: a receiver that
// is given up may have the events of every job, and a Prometheus that is gone all alerts.
constexpr int64_t kPartBytes = kMaxUpdateBytes / 4;
constexpr int64_t kPartFacts = kMaxFacts / 4;

template <class Record>
std::vector<std::vector<Record>> InParts(const std::vector<Record>& records) {
  std::vector<std::vector<Record>> parts(1);
  int64_t bytes = 0;
  for (const Record& record : records) {
    const auto size = static_cast<int64_t>(record.ByteSizeLong());
    if (std::ssize(parts.back()) == kPartFacts ||
        (!parts.back().empty() && bytes + size > kPartBytes)) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(record);
    bytes += size;
  }
  return parts;
}

// Answers once with the answers to `parts` changes: OK, or the first error.
// Thread-safety: all methods.
class AnswerOfParts {
 public:
  AnswerOfParts(size_t parts, std::function<void(const absl::Status&)> done)
      : done_(std::move(done)), left_(parts) {}

  void Take(const absl::Status& status) {
    absl::Status all;
    {
      MutexLock lock(&mutex_);
      status_.Update(status);
      if (--left_ > 0) return;
      all = status_;
    }
    done_(all);
  }

 private:
  const std::function<void(const absl::Status&)> done_;
  Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// decide(state, part) for each part of the records.
template <class Record, class DecidePart>
void RecordInParts(Ledger& ledger, const std::vector<Record>& records,
                   std::function<void(const absl::Status&)> done, DecidePart decide) {
  const std::vector<std::vector<Record>> parts = InParts(records);
  const auto answer = std::make_shared<AnswerOfParts>(parts.size(), std::move(done));
  for (const std::vector<Record>& part : parts) {
    ledger.Change([&](const State& state) { return decide(state, part); },
                  [answer](const absl::Status& status) { answer->Take(status); });
  }
}

}  // namespace

void ClientRequests::RecordPosts(const std::vector<v1::PostsSettled>& settled,
                                 std::function<void(const absl::Status&)> done) {
  RecordInParts(context_.ledger, settled, std::move(done),
                [this](const State& state, const std::vector<v1::PostsSettled>& part) {
                  return DecideSettled(state, part, context_.coordinator());
                });
}

void ClientRequests::RecordAlerts(const std::vector<v1::AlertChanged>& changes,
                                  std::function<void(const absl::Status&)> done) {
  const Caller caller = {"prometheus", context_.clock.NowUnixMs()};
  RecordInParts(context_.ledger, changes, std::move(done),
                [&caller](const State& state, const std::vector<v1::AlertChanged>& part) {
                  return DecideAlerts(state, part, caller);
                });
}

}  // namespace nibble
