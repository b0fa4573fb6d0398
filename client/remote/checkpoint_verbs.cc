#include "client/remote/checkpoint_verbs.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/local/exit_code.h"
#include "client/local/finish.h"
#include "client/local/noun.h"
#include "client/local/number_check.h"
#include "client/remote/checkpoint_text.h"
#include "client/remote/find_job.h"
#include "client/remote/interrupt.h"
#include "client/remote/verb.h"

namespace nibble {

struct CheckpointFlags {
  RemoteFlags remote;
  int64_t attempt = 0;
  bool uncommitted = false;
  bool no_wait = false;
  std::string reason;
};

namespace {

using Stub = CoordinatorClient::Stub;

// "train-7@300"; without a step, the newest (-1).
struct Name {
  std::string job;
  int64_t step = -1;
};

absl::StatusOr<Name> ParseName(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return Name{text};
  Name name = {text.substr(0, at)};
  if (name.job.empty() || !absl::SimpleAtoi(text.substr(at + 1), &name.step) || name.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: '", text, "' is not JOB@STEP with a step of 0 or more"));
  }
  return name;
}

absl::StatusOr<v1::CheckpointRef> FindRef(Session& session, const std::string& text,
                                          const CheckpointFlags& flags) {
  const absl::StatusOr<Name> name = ParseName(text);
  if (!name.ok()) return name.status();
  const absl::StatusOr<v1::Job> job = FindJob(session, name->job);
  if (!job.ok()) return job.status();
  v1::CheckpointRef ref;
  ref.set_job(job->id());
  ref.set_step(name->step);
  ref.set_attempt(flags.attempt);
  return ref;
}

absl::StatusOr<int> List(Session& session, const std::string& text, const CheckpointFlags& flags) {
  const absl::StatusOr<v1::Job> job = FindJob(session, text);
  if (!job.ok()) return job.status();
  v1::ListCheckpointsRequest request;
  request.set_job(job->id());
  request.set_with_uncommitted(flags.uncommitted);
  const absl::StatusOr<v1::ListCheckpointsResponse> all =
      session.CallAllPages(&Stub::ListCheckpoints, request);
  if (!all.ok()) return all.status();
  return session.Finish(*all, CheckpointTable(all->checkpoints()));
}

absl::StatusOr<v1::DescribeCheckpointResponse> Described(Session& session,
                                                         const v1::CheckpointRef& ref) {
  v1::DescribeCheckpointRequest request;
  *request.mutable_ref() = ref;
  return session.Call(&Stub::DescribeCheckpoint, request);
}

absl::StatusOr<int> Describe(Session& session, const std::string& text,
                             const CheckpointFlags& flags) {
  const absl::StatusOr<v1::CheckpointRef> ref = FindRef(session, text, flags);
  if (!ref.ok()) return ref.status();
  const absl::StatusOr<v1::DescribeCheckpointResponse> described = Described(session, *ref);
  if (!described.ok()) return described.status();
  return session.Finish(*described, CheckpointText(*described));
}

// The task as it is when it has ended, or nobody waits any longer.
absl::StatusOr<v1::CheckpointTask> WaitForTask(Session& session, const v1::CheckpointRef& ref,
                                               int64_t number, bool no_wait) {
  Interrupt interrupt;
  const absl::Duration deadline = session.flags().timeout.empty()
                                      ? absl::InfiniteDuration()
                                      : SteadyNow() + session.client().options().timeout;
  RetryPauses pauses;
  bool told = false;
  while (true) {
    const absl::StatusOr<v1::DescribeCheckpointResponse> described = Described(session, ref);
    if (!described.ok()) return described.status();
    for (const v1::CheckpointTask& task : described->checkpoint().tasks()) {
      if (task.number() != number) continue;
      const bool ended = task.state() != v1::CHECKPOINT_TASK_STATE_REQUESTED;
      if (ended || no_wait || interrupt.happened() || SteadyNow() >= deadline) return task;
      if (!std::exchange(told, true)) {
        session.Say(
            absl::StrCat(TaskText(ref, task), "; waiting for its end, Ctrl-C lets go of it"));
      }
    }
    interrupt.SleepFor(std::min(pauses.Next(), deadline - SteadyNow()));
  }
}

absl::StatusOr<int> FinishTask(Session& session, const v1::CheckpointRef& ref, int64_t number,
                               const CheckpointFlags& flags) {
  const absl::StatusOr<v1::CheckpointTask> task = WaitForTask(session, ref, number, flags.no_wait);
  if (!task.ok()) return task.status();
  const absl::Status status = session.Print(*task, TaskText(ref, *task) + "\n");
  if (!status.ok()) return status;
  switch (task->state()) {
    case v1::CHECKPOINT_TASK_STATE_DONE:
      return kExitDone;
    case v1::CHECKPOINT_TASK_STATE_FAILED:
      return kExitError;
    default:
      session.Say(absl::StrCat("`nibble checkpoint describe ", NameOf(ref), "` tells its end"));
      return flags.no_wait ? kExitDone : kExitNotFinished;
  }
}

absl::StatusOr<int> Verify(Session& session, const std::string& text,
                           const CheckpointFlags& flags) {
  const absl::StatusOr<v1::CheckpointRef> ref = FindRef(session, text, flags);
  if (!ref.ok()) return ref.status();
  v1::VerifyCheckpointRequest request;
  *request.mutable_ref() = *ref;
  const absl::StatusOr<v1::VerifyCheckpointResponse> response =
      session.Call(&Stub::VerifyCheckpoint, request);
  if (!response.ok()) return response.status();
  return FinishTask(session, response->ref(), response->task(), flags);
}

// What is relative is taken from here, as for a directory; the worker that writes there may be
// another machine.
absl::StatusOr<std::string> AbsoluteTarget(Session& session, const std::string& target) {
  std::filesystem::path path(target);
  if (target.empty() || path.is_absolute()) return target;
  std::error_code error;
  path = std::filesystem::current_path(error) / path;
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "destination: '", target, "' is relative to a directory that is gone: ", error.message()));
  }
  const std::string absolute = path.lexically_normal().string();
  session.Say(absl::StrCat("'", target, "' is ", absolute, ", on the worker that writes it"));
  return absolute;
}

absl::StatusOr<int> Export(Session& session, const std::string& text, const std::string& target,
                           const CheckpointFlags& flags) {
  const absl::StatusOr<std::string> destination = AbsoluteTarget(session, target);
  if (!destination.ok()) return destination.status();
  const absl::StatusOr<v1::CheckpointRef> ref = FindRef(session, text, flags);
  if (!ref.ok()) return ref.status();
  v1::ExportCheckpointRequest request;
  *request.mutable_ref() = *ref;
  request.set_destination(*destination);
  const absl::StatusOr<v1::ExportCheckpointResponse> response =
      session.Call(&Stub::ExportCheckpoint, request);
  if (!response.ok()) return response.status();
  return FinishTask(session, response->ref(), response->task(), flags);
}

template <class Request, class Response>
absl::StatusOr<Response> ChangeOf(Session& session, const std::string& text,
                                  const CheckpointFlags& flags,
                                  CoordinatorClient::Method<Request, Response> method,
                                  Request request = {}) {
  if (text.find('@') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint: say which: ", text, "@STEP"));
  }
  const absl::StatusOr<v1::CheckpointRef> ref = FindRef(session, text, flags);
  if (!ref.ok()) return ref.status();
  *request.mutable_ref() = *ref;
  return session.Call(method, request);
}

absl::StatusOr<int> Pin(Session& session, const std::string& text, const CheckpointFlags& flags) {
  const auto response = ChangeOf(session, text, flags, &Stub::PinCheckpoint);
  if (!response.ok()) return response.status();
  return session.Finish(response->checkpoint(),
                        absl::StrCat(NameOf(response->checkpoint().ref()), " is pinned\n"));
}

absl::StatusOr<int> Unpin(Session& session, const std::string& text, const CheckpointFlags& flags) {
  const auto response = ChangeOf(session, text, flags, &Stub::UnpinCheckpoint);
  if (!response.ok()) return response.status();
  const v1::Checkpoint& checkpoint = response->checkpoint();
  return session.Finish(
      checkpoint, absl::StrCat(NameOf(checkpoint.ref()), checkpoint.pins().empty()
                                                             ? " is no longer pinned\n"
                                                             : " is pinned by others still\n"));
}

absl::StatusOr<int> Delete(Session& session, const std::string& text,
                           const CheckpointFlags& flags) {
  v1::DeleteCheckpointRequest request;
  request.set_reason(flags.reason);
  const auto response = ChangeOf(session, text, flags, &Stub::DeleteCheckpoint, request);
  if (!response.ok()) return response.status();
  return session.Finish(*response, absl::StrCat(NameOf(response->ref()), " is deleted\n"));
}

// A name with a slash is a path; one without is a directory where there is one.
bool IsHere(const std::string& name) {
  std::error_code ignored;
  const size_t at = name.rfind('@');
  return name.find('/') != std::string::npos || name.empty() ||
         std::filesystem::is_directory(name, ignored) ||
         (at != std::string::npos && std::filesystem::is_directory(name.substr(0, at), ignored));
}

// Refuses an option that means nothing for what the name is: 2 where one of them is given.
std::optional<int> Refuse(const GivenVerb& given, std::initializer_list<const char*> options,
                          const char* only) {
  for (const char* name : options) {
    const CLI::Option* const option = given.verb->get_option_no_throw(name);
    if (option == nullptr || option->count() == 0) continue;
    Tell("checkpoint " + given.verb->get_name(),
         absl::StrCat(name, " goes with ", only, "; '", given.name, "' is none"));
    return kExitUsage;
  }
  return std::nullopt;
}

std::optional<int> Run(const GivenVerb& given, CheckpointFlags flags) {
  if (flags.remote.server.empty() && IsHere(given.name)) {
    return Refuse(given, {"--attempt", "--uncommitted", "--no-wait", "--reason"},
                  "a job of the cluster");
  }
  const std::optional<int> refused =
      Refuse(given, {"--dtype", "--quantised", "--recipe", "--overwrite"}, "a run's directory");
  if (refused) return refused;
  flags.remote.print = given.print;
  const std::string verb = given.verb->get_name();
  return RunRemote("checkpoint " + verb, flags.remote,
                   [&](Session& session) -> absl::StatusOr<int> {
                     if (verb == "list") return List(session, given.name, flags);
                     if (verb == "describe") return Describe(session, given.name, flags);
                     if (verb == "verify") return Verify(session, given.name, flags);
                     if (verb == "pin") return Pin(session, given.name, flags);
                     if (verb == "unpin") return Unpin(session, given.name, flags);
                     if (verb == "delete") return Delete(session, given.name, flags);
                     return Export(session, given.name,
                                   given.verb->get_option("TARGET")->as<std::string>(), flags);
                   });
}

}  // namespace

CheckpointVerbs::CheckpointVerbs() : flags_(std::make_shared<CheckpointFlags>()) {}

TakeOver CheckpointVerbs::take_over() const {
  return [flags = flags_](const GivenVerb& given) { return Run(given, *flags); };
}

void CheckpointVerbs::AddOptions(CLI::App& app) const {
  CLI::App* const checkpoint = NounOf(app, "checkpoint", "");
  for (const char* name : {"list", "describe", "verify", "export", "pin", "unpin", "delete"}) {
    CLI::App* const verb = checkpoint->get_subcommand(name);
    AddRemoteOptions(verb, flags_->remote, Output::kNone);
    if (std::string(name) != "list") {
      verb->add_option("--attempt", flags_->attempt, "of a job: the attempt that made it")
          ->check(WholeFor(flags_->attempt, 0));
    }
  }
  const auto describe = [checkpoint](const char* verb, const char* option, const char* text) {
    checkpoint->get_subcommand(verb)->get_option(option)->description(text);
  };
  describe("list", "DIRECTORY", "a run's directory or store, or a job of the cluster");
  for (const char* verb : {"describe", "verify", "export"}) {
    describe(verb, "CHECKPOINT", "DIRECTORY@STEP or JOB@STEP; without a step the newest");
  }
  describe("verify", "CHECKPOINT",
           "DIRECTORY@STEP or JOB@STEP; without a step all of a directory, a job's newest");
  for (const char* verb : {"pin", "unpin", "delete"}) {
    describe(verb, "CHECKPOINT", "DIRECTORY@STEP or JOB@STEP");
  }
  describe("export", "TARGET",
           "directory to make; of a job it is made by a worker, on that worker's machine");
  CLI::App* const out = checkpoint->get_subcommand("export");
  out->footer(
      "Examples: nibble checkpoint export runs/quickstart@300 exported\n"
      "          nibble checkpoint export train-1@100 exported");
  for (const char* name : {"--dtype", "--quantised", "--recipe", "--overwrite"}) {
    CLI::Option* const option = out->get_option(name);
    option->description("of a directory: " + option->get_description());
  }
  checkpoint->get_subcommand("list")->add_flag("--uncommitted", flags_->uncommitted,
                                               "of a job: also those still being written");
  for (const char* verb : {"verify", "export"}) {
    checkpoint->get_subcommand(verb)->add_flag("--no-wait", flags_->no_wait,
                                               "of a job: ask for it and go");
    TimeoutEndsWait(checkpoint->get_subcommand(verb));
  }
  checkpoint->get_subcommand("delete")->add_option("--reason", flags_->reason,
                                                   "of a job: why, for its events");
}

}  // namespace nibble
