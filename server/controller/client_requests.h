// Clients' changes: decides them (server/state/decide.h), answers them when they are durable, and
// fills in what the answers name.
//
// A change of a recipe is answered when ranks have switched, or ControllerOptions::switch_wait_ms
// later (switch_answers.h).
//
// Thread-safety: all methods. `done` runs without a lock, in the caller's thread, the store's or
// that of Tick; it may call everything but must not wait for another answer.
#ifndef NIBBLE_SERVER_CONTROLLER_CLIENT_REQUESTS_H_
#define NIBBLE_SERVER_CONTROLLER_CLIENT_REQUESTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/controller/controller_context.h"
#include "server/controller/switch_answers.h"
#include "server/state/state.h"

namespace nibble {

class ClientRequests {
 public:
  template <class Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>)>;

  explicit ClientRequests(const ControllerContext& context) : context_(context) {}

  // A mutation of server/state/decide.h. Instantiated for each mutation in client_requests.cc.
  template <class Response, class Request>
  void Change(const Request& request, const std::string& author, Done<Response> done);

  // Records the results of posted events; done(OK) when they are durable.
  void RecordPosts(const std::vector<v1::PostsSettled>& settled,
                   std::function<void(const absl::Status&)> done);

  // Answers the changes of a job's recipe whose revisions are settled in `state`.
  void AnswerSettled(const State& state, const std::string& job);
  // Answers those that have waited for long enough.
  void AnswerDue(int64_t now_ms);
  // Answers all; from here on every change is answered as soon as it is durable.
  void StopWaiting();

 private:
  template <class Response>
  void Complete(bool dry_run, Response& response) const;
  template <class Response>
  void AnswerWhenSwitched(const std::string& job, std::shared_ptr<Response> response,
                          Done<Response> done);

  const ControllerContext& context_;
  SwitchAnswers switches_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CLIENT_REQUESTS_H_
