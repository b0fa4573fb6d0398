// What a caller that is bound to projects sees: the jobs of these alone. To it another job does not
// exist: it is left out of lists and watches, a request that names it gets the answer about a job
// that there is not, and where a text about its own job names another one, such as the reason why
// it waits, the id is replaced.
//
// Requests that name one job are refused by the service's admission before they get here.
//
// Ownership: values. Thread-safety: const methods.
#ifndef NIBBLE_SERVER_CONTROLLER_PROJECT_VIEW_H_
#define NIBBLE_SERVER_CONTROLLER_PROJECT_VIEW_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/state/state.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace nibble {

// In place of another project's job.
inline constexpr char kHiddenJob[] = "(another project's)";

class ProjectView {
 public:
  ProjectView() = default;  // sees everything
  // `projects`: empty: sees everything.
  explicit ProjectView(std::vector<std::string> projects) : projects_(std::move(projects)) {}

  bool bound() const { return !projects_.empty(); }
  bool Shows(const v1::JobRecord& job) const;
  // False also for a job that the state does not know, unless it sees everything.
  bool Shows(const State& state, const std::string& job) const;
  // Whether a change of a watch is about a job that it shows, or about none.
  bool Shows(const State& state, const v1::WatchJobsResponse& change) const;

  // Replaces the ids of jobs that it does not show in all texts of the message but documents, and
  // removes those that are entries of a list.
  void Redact(const State& state, google::protobuf::Message& message) const;

 private:
  bool Hides(const State& state, absl::string_view word) const;
  std::string Redacted(const State& state, const std::string& text) const;

  std::vector<std::string> projects_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_PROJECT_VIEW_H_
