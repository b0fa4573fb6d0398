// A verb that calls the coordinator: how it runs, what it returns, and how it finds the job that it
// names.
//
// Ownership: a Session borrows its flags and its client. Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_VERB_H_
#define NIBBLE_CLIENT_REMOTE_VERB_H_

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/rpcs.h"
#include "client/shell/command_line.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "google/protobuf/message.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/recipe.pb.h"

namespace nibble {

// One running command. Streams and messages go out while it runs; its result is its Reply.
class Session {
 public:
  Session(std::string command, const RemoteFlags& flags, CoordinatorClient& client)
      : command_(std::move(command)), flags_(flags), client_(client) {}

  CoordinatorClient& client() { return client_; }
  // Whether --output requests a format for programs.
  bool for_programs() const { return ForPrograms(flags_.print); }
  // When a wait ends: after --timeout from now; InfiniteDuration() without. On SteadyNow()'s clock.
  absl::Duration WaitDeadline() const;

  template <class Request, class Response>
  absl::StatusOr<Response> Call(const Rpc<Request, Response>& rpc, Request request) {
    return client_.Call(rpc, std::move(request));
  }

  // Writes "nibble job submit: text" to stderr.
  void Say(const std::string& text) const { Tell(command_, text); }
  // Writes the text to stdout unchanged.
  void Out(const std::string& text) const;
  // Writes one element of a stream for programs: a line of JSON, or a YAML document that begins
  // with "---".
  void PrintElement(const google::protobuf::Message& message) const;

 private:
  const std::string command_;
  const RemoteFlags& flags_;
  CoordinatorClient& client_;
};

// Connects to the coordinator that the flags name, and runs a verb. `command` is "job submit".
absl::StatusOr<Reply> RunRemote(const std::string& command, const RemoteFlags& flags,
                                const std::function<absl::StatusOr<Reply>(Session&)>& run);

// As a run of the verb, by itself or of a noun with several sources; the flags have a RemoteFlags
// `remote`.
template <class Flags>
VerbRun<Flags> Remote(const std::string& command,
                      absl::StatusOr<Reply> (*run)(Session&, const Flags&)) {
  return [command, run](const Flags& flags) {
    return RunRemote(command, flags.remote, [&](Session& session) { return run(session, flags); });
  };
}

// The message as JSON for programs, and `text` for people.
Reply ReplyOf(const google::protobuf::Message& message, std::string text,
              int exit_code = kExitDone);

// A verb of the noun. `Flags` is a struct with a RemoteFlags `remote`; each verb has its own.
template <class Flags>
class RemoteVerb {
 public:
  // `parent`: "checkpoint " of the verbs of its part "trash".
  RemoteVerb(Command noun, const std::string& name, const std::string& help,
             const std::string& parent = "")
      : flags_(std::make_shared<Flags>()),
        command_(parent + noun.Name() + " " + name),
        verb_(noun.AddSubcommand(name, help)) {
    AddRemoteOptions(verb_, flags_->remote);
  }

  Flags* operator->() { return flags_.get(); }
  Command app() { return verb_; }
  void Runs(int& exit_code, absl::StatusOr<Reply> (*run)(Session&, const Flags&)) {
    verb_.OnParsed([flags = flags_, command = command_, run = Remote(command_, run), &exit_code] {
      exit_code = Finish(command, flags->remote.print, run(*flags));
    });
  }

 private:
  std::shared_ptr<Flags> flags_;
  std::string command_;
  Command verb_;
};

// The message as JSON for programs: keys are the field names of proto/nibble/v1, every field is
// present, 64-bit numbers are numbers, enums are their names. Unset messages and unset members of a
// oneof are omitted.
nlohmann::ordered_json JsonOf(const google::protobuf::Message& message);

// How users name a job.
inline constexpr char kJobHelp[] =
    "id, such as train-7, or a name: its only unfinished job, else its newest; or a unique prefix "
    "of an id";

struct ChosenJob {
  v1::Job job;
  std::string why;  // ", the newest of 3 jobs with this name"; empty: there is no other
};

// The job that `given` names among `jobs`, newest first: the one with that id; else the only
// unfinished one with that name, or the newest; else the only one whose id has that prefix.
// NotFound suggests the nearest id; InvalidArgument lists at most three of several matches.
absl::StatusOr<ChosenJob> ChooseJob(const std::string& given, const std::vector<v1::Job>& jobs);

// The job with this id.
absl::StatusOr<v1::Job> DescribeJob(Session& session, const std::string& id);

// ChooseJob() among the jobs of the cluster. Says which job it is unless `given` is its id.
absl::StatusOr<v1::Job> FindJob(Session& session, const std::string& given);

// Every revision of the job's recipe that was accepted, by number, with the archived ones.
absl::StatusOr<std::vector<v1::RecipeRevision>> ListRevisions(Session& session,
                                                              const std::string& job);

// Calls about the job that `given` names, for FindJob.
template <class Request, class Response>
absl::StatusOr<Response> CallOfJob(Session& session, const std::string& given,
                                   const Rpc<Request, Response>& rpc, Request request = {}) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, FindJob(session, given));
  request.set_job(job.id());
  return session.Call(rpc, std::move(request));
}

// Adds the positional JOB, for FindJob.
void AddJobOption(Command verb, std::string& job);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_VERB_H_
