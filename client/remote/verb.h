// A verb that talks to the coordinator: the options that all of them have, how they run, what they
// print, and how they find the job that they are about.
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
#include "client/shell/output.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/rpcs.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "google/protobuf/message.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// --server, --timeout, --output.
struct RemoteFlags {
  std::string server;
  std::string timeout;  // empty: not given
  std::string print = "table";

  bool for_programs() const { return ForPrograms(print); }
};

// "30s", "5m", "1h30m", or seconds as a number. InvalidArgument says what is allowed.
absl::StatusOr<absl::Duration> ParseSeconds(const std::string& text);

// One running command. Data goes to stdout, messages for people to stderr.
class Session {
 public:
  Session(std::string command, const RemoteFlags& flags, CoordinatorClient& client)
      : command_(std::move(command)), flags_(flags), client_(client) {}

  CoordinatorClient& client() { return client_; }
  const RemoteFlags& flags() const { return flags_; }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(const Rpc<Request, Response>& rpc, Request request) {
    return client_.Call(rpc, std::move(request));
  }

  // Calls until the last page; returns all pages merged, without next_token.
  template <class Request, class Response>
  absl::StatusOr<Response> CallAllPages(const Rpc<Request, Response>& rpc, Request request = {}) {
    request.mutable_page()->set_size(1000);
    request.mutable_page()->clear_token();
    Response all;
    do {
      NIBBLE_ASSIGN_OR_RETURN(const Response page, Call(rpc, request));
      request.mutable_page()->set_token(page.next_token());
      all.MergeFrom(page);
    } while (!request.page().token().empty());
    all.clear_next_token();
    return all;
  }

  // Writes "nibble job submit: text" to stderr.
  void Say(const std::string& text) const;
  // Writes the text to stdout unchanged.
  void Out(const std::string& text) const;
  // Prints `table` for people, or the message's fields as JSON or YAML, as --output requests.
  absl::Status Print(const google::protobuf::Message& message, const std::string& table) const;
  // Print(), then kExitDone: the last statement of most verbs.
  absl::StatusOr<int> Finish(const google::protobuf::Message& message,
                             const std::string& table) const;
  // One element of a stream, for programs: a line of JSON, or a YAML document that begins with
  // "---".
  void PrintElement(const google::protobuf::Message& message) const;

 private:
  const std::string command_;
  const RemoteFlags& flags_;
  CoordinatorClient& client_;
};

// Runs a verb; returns its exit code.
using RemoteRun = std::function<absl::StatusOr<int>(Session&)>;

// Adds the options of RemoteFlags; kNone: without --output, which the verb has already.
enum class Output { kFormats, kNone };
void AddRemoteOptions(Command verb, RemoteFlags& flags, Output output = Output::kFormats);
// An option whose value ParseSeconds() accepts; other values are usage errors.
Option AddSecondsOption(Command verb, const std::string& name, std::string& text,
                        const std::string& help);
// Replaces the help of --timeout: to a verb that waits, it limits the wait.
void TimeoutEndsWait(Command verb);
// Finds the coordinator, runs the verb and reports errors as "nibble job submit: …"; returns the
// exit code. `command` is "job submit".
int RunRemote(const std::string& command, const RemoteFlags& flags, const RemoteRun& run);

// A verb of the noun. `Flags` is a struct with a RemoteFlags `remote`; each verb has its own.
template <class Flags>
class RemoteVerb {
 public:
  RemoteVerb(Command noun, const std::string& name, const std::string& help,
             Output output = Output::kFormats)
      : flags_(std::make_shared<Flags>()),
        command_(noun.Name() + " " + name),
        verb_(noun.AddSubcommand(name, help)) {
    AddRemoteOptions(verb_, flags_->remote, output);
  }

  Flags* operator->() { return flags_.get(); }
  Command app() { return verb_; }
  void Runs(int& exit_code, absl::StatusOr<int> (*run)(Session&, const Flags&)) {
    verb_.OnParsed([flags = flags_, command = command_, run, &exit_code] {
      exit_code =
          RunRemote(command, flags->remote, [&](Session& session) { return run(session, *flags); });
    });
  }

 private:
  std::shared_ptr<Flags> flags_;
  std::string command_;
  Command verb_;
};

// The message as JSON for programs: keys are the field names of proto/nibble/v1, every field is
// present, numbers are numbers (also 64-bit ones), enums are their names. Unset messages and unset
// members of a oneof are left out.
nlohmann::ordered_json JsonOf(const google::protobuf::Message& message);

// The job that `given` means: the one with that id; else the only one with that name; else the only
// one whose id has that prefix. NotFound names the nearest id; InvalidArgument names at most three
// of several matches.
absl::StatusOr<v1::Job> ChooseJob(const std::string& given, const std::vector<v1::Job>& jobs);

// ChooseJob() among the jobs of the cluster.
absl::StatusOr<v1::Job> FindJob(Session& session, const std::string& given);
// Every job that matches the request, from all pages; the request's page is ignored.
absl::StatusOr<std::vector<v1::Job>> ListAllJobs(Session& session, v1::ListJobsRequest request);

// Adds the positional JOB, for FindJob.
void AddJobOption(Command verb, std::string& job);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_VERB_H_
