// Clients' changes: decides them (server/state/decide.h), answers them when they are durable, and
// fills in what the answers name.
//
// A change of a recipe is answered when ranks have switched, or ControllerOptions::switch_wait_ms
// later (switch_answers.h).
//
// Requests and responses are messages of any type here: code per call would take the compiler long.
//
// Thread-safety: all methods. `done` runs without a lock, in the caller's thread, the store's or
// that of Tick; it may call everything but must not wait for another answer.
#ifndef NIBBLE_SERVER_CONTROLLER_CLIENT_REQUESTS_H_
#define NIBBLE_SERVER_CONTROLLER_CLIENT_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/controller/controller_context.h"
#include "server/controller/switch_answers.h"
#include "server/state/state.h"

namespace nibble {

class ClientRequests {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  explicit ClientRequests(const ControllerContext& context) : context_(context) {}

  // Makes a change of server/state/decide.h. `response`, of the type that belongs to the request,
  // is complete when done(OK) is called. `projects` and `is_worker`: of Caller.
  void Change(const google::protobuf::Message& request, const std::string& author,
              std::shared_ptr<google::protobuf::Message> response, Done done,
              const std::vector<std::string>& projects = {}, bool is_worker = false);
  // As above; done(absl::StatusOr<Response>).
  template <class Response, class Request, class Then>
  void Change(const Request& request, const std::string& author, Then done) {
    const auto response = std::make_shared<Response>();
    Change(request, author, response,
           [response, done = std::move(done)](const absl::Status& status) mutable {
             done(status.ok() ? absl::StatusOr<Response>(std::move(*response)) : status);
           });
  }

  // Records the results of posted events, in as many changes as it takes; done(OK) when all are
  // durable.
  void RecordPosts(const std::vector<v1::PostsSettled>& settled,
                   std::function<void(const absl::Status&)> done);

  // Records alerts that fire or are resolved, in as many changes as it takes; done(OK) when all are
  // durable.
  void RecordAlerts(const std::vector<v1::AlertChanged>& changes,
                    std::function<void(const absl::Status&)> done);

  // Answers the changes of a job's recipe whose revisions are settled in `state`.
  void AnswerSettled(const State& state, const std::string& job);
  // Answers those that have waited for long enough.
  void AnswerDue(int64_t now_ms);
  // Answers all; from here on every change is answered as soon as it is durable.
  void StopWaiting();

 private:
  // Fills in the job, checkpoint or worker that a decision's answer names.
  void Complete(google::protobuf::Message& response) const;
  void AnswerWhenSwitched(const std::string& job,
                          std::shared_ptr<google::protobuf::Message> response, Done done);

  const ControllerContext& context_;
  SwitchAnswers switches_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CLIENT_REQUESTS_H_
