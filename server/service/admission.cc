#include "server/service/admission.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/identity/credentials.h"
#include "common/status_macros.h"
#include "google/protobuf/message.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"
#include "server/service/wire.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

absl::Status ReadAuthor(const grpc::CallbackServerContext& context, std::string& author) {
  author = "anonymous";
  const auto author_metadata = context.client_metadata().find(kAuthorMetadata);
  if (author_metadata == context.client_metadata().end()) return absl::OkStatus();
  author.assign(author_metadata->second.data(), author_metadata->second.size());
  const bool printable =
      std::all_of(author.begin(), author.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable || author.empty() || std::ssize(author) > kMaxAuthorBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kAuthorMetadata, ": ", author.size(),
                                                   " bytes; allowed: 1 to ", kMaxAuthorBytes,
                                                   " printable characters"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string PeerHost(absl::string_view peer) {
  const bool has_port = absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
  const size_t colon = peer.rfind(':');
  if (!has_port || colon < sizeof("ipv4:") - 1) return std::string(peer);
  return std::string(peer.substr(0, colon));
}

absl::Status Admission::Identify(const grpc::CallbackServerContext& context,
                                 CallerIdentity& caller) {
  if (options_.authenticator == nullptr) {
    caller.access.role = v1::ROLE_OPERATOR;
    return ReadAuthor(context, caller.author);
  }
  PeerName peer;
  if (options_.tls) {
    absl::StatusOr<PeerName> named = PeerOfCall(*context.auth_context());
    if (!named.ok()) return absl::UnauthenticatedError(named.status().message());
    peer = *std::move(named);
    if (peer.kind == PeerKind::kUnnamed) {
      return absl::UnauthenticatedError("certificate: it has no name");
    }
    caller.certificate = peer.ToString();
  }
  const auto given = context.client_metadata().find("authorization");
  const absl::string_view authorization =
      given == context.client_metadata().end()
          ? absl::string_view()
          : absl::string_view(given->second.data(), given->second.size());
  NIBBLE_ASSIGN_OR_RETURN(
      caller.access, options_.authenticator->Authenticate(peer, authorization, clock_.NowUnixMs()));
  caller.author = caller.access.name;
  caller.authenticated = true;
  return absl::OkStatus();
}

namespace {

std::string ProjectsText(const AccessCaller& caller) {
  return absl::StrCat(caller.projects.size() == 1 ? "project " : "projects ",
                      absl::StrJoin(caller.projects, ", "));
}

}  // namespace

absl::Status Admission::CheckRights(const CallerIdentity& caller, const char* call,
                                    const google::protobuf::Message* request) const {
  const AccessRow* const row = FindAccess(call, request);
  if (row == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat(call, ": no role may make this call"));
  }
  if (!caller.authenticated) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckRole(*row, caller.access.role, caller.author));
  if (row->own_worker && caller.access.role == v1::ROLE_WORKER) {
    return CheckOwnWorker(*row, caller.author, request);
  }
  if (row->scope == JobScope::kCluster && !caller.access.projects.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(call, ": ", caller.author,
                                                    " may see and change jobs of ",
                                                    ProjectsText(caller.access), " alone"));
  }
  const bool owns = row->own_job && caller.access.role == v1::ROLE_SUBMITTER;
  const bool bound = row->scope == JobScope::kJob && !caller.access.projects.empty();
  return (owns || bound) && request != nullptr ? CheckJobRights(caller, owns, *request)
                                               : absl::OkStatus();
}

absl::Status Admission::CheckJobRights(const CallerIdentity& caller, bool owns,
                                       const google::protobuf::Message& request) const {
  const std::string job = JobOfRequest(request);
  const std::optional<JobRights> rights =
      options_.rights_of ? options_.rights_of(job) : std::nullopt;
  const std::vector<std::string>& projects = caller.access.projects;
  // Not left to the change: a job that is about to be stored has an owner, too. A job of another
  // project is no different from one that there is not; the audit log names the caller's projects.
  if (!rights ||
      (!projects.empty() && std::count(projects.begin(), projects.end(), rights->project) == 0)) {
    return absl::NotFoundError(absl::StrCat("job: there is no '", Clip(job, kMaxNameBytes), "'"));
  }
  if (!owns || rights->owner == caller.author) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("job: '", job, "' belongs to ", rights->owner,
                                                  ", and ", caller.author,
                                                  " is submitter; allowed: its owner, operator"));
}

namespace {

// Callers without an identity share what their address may do.
std::string RateName(const CallerIdentity& caller) {
  return caller.authenticated ? absl::StrCat("caller ", caller.author) : caller.peer;
}

}  // namespace

std::optional<CallerIdentity> Admission::Admit(const grpc::CallbackServerContext& context,
                                               const char* call,
                                               const google::protobuf::Message* request,
                                               Refusal& refusal) {
  CallerIdentity caller;
  caller.from = context.peer();
  caller.peer = PeerHost(caller.from);
  absl::Status status = Identify(context, caller);
  const absl::Status rate = limiter_.Take(RateName(caller));
  if (!rate.ok()) status = rate;
  if (status.ok()) status = CheckRights(caller, call, request);
  if (status.ok()) return caller;
  absl::Status recorded = status;
  if (absl::IsNotFound(status) && !caller.access.projects.empty()) {
    recorded = absl::NotFoundError(absl::StrCat(status.message(), " for ", caller.author,
                                                ", who sees jobs of ", ProjectsText(caller.access),
                                                " alone"));
  }
  Record(caller, call, request == nullptr ? "" : SubjectOf(*request), "", recorded,
         /*refused=*/true);
  refusal.status = status;
  Pace(caller, refusal);
  return std::nullopt;
}

std::optional<CallerIdentity> Admission::AdmitAnybody(const grpc::CallbackServerContext& context,
                                                      const char* call, Refusal& refusal) {
  CallerIdentity caller;
  caller.from = context.peer();
  caller.peer = PeerHost(caller.from);
  absl::Status rate = limiter_.Take(RateName(caller));
  if (rate.ok()) return caller;
  refusal = Refuse(caller, call, std::move(rate));
  return std::nullopt;
}

Refusal Admission::Refuse(const CallerIdentity& caller, const char* call, absl::Status why) {
  Refusal refusal = {.status = std::move(why)};
  Record(caller, call, "", "", refusal.status, /*refused=*/true);
  Pace(caller, refusal);
  return refusal;
}

void Admission::Pace(const CallerIdentity& caller, Refusal& refusal) {
  const std::string name = RateName(caller);
  const RefusalTurn turn = limiter_.Refuse(name);
  if (turn.flooding) {
    if (!options_.end_connection || !options_.end_connection(caller.from)) return;
    Record(caller, "connection", "", "",
           absl::ResourceExhaustedError(absl::StrCat(
               "refusals of ", name, ": they wait for more than ", options_.rate.refusal_wait_ms,
               " ms; allowed: ", options_.rate.refusals_per_second,
               " per second; its connection is closed")),
           /*refused=*/true);
    return;
  }
  if (turn.after_ms == 0) return;
  if (waiting_->fetch_add(1) >= kWaitingRefusals) {
    waiting_->fetch_sub(1);
    return;
  }
  refusal.after_ms = turn.after_ms;
  refusal.place = std::shared_ptr<const void>(
      waiting_.get(), [waiting = waiting_](const void*) { waiting->fetch_sub(1); });
}

absl::Status Admission::CheckStillValid(const CallerIdentity& caller) const {
  if (!caller.authenticated) return absl::OkStatus();
  return options_.authenticator->CheckStillValid(caller.access, clock_.NowUnixMs());
}

void OpenCall::EndWith(std::function<void(const absl::Status&)> end) {
  std::optional<absl::Status> why;
  {
    const MutexLock lock(&mutex_);
    why = why_;
    if (!why) end_ = std::move(end);
  }
  if (why) end(*why);
}

bool OpenCall::End(const absl::Status& why) {
  std::function<void(const absl::Status&)> end;
  {
    const MutexLock lock(&mutex_);
    if (why_) return false;
    why_ = why;
    end = std::exchange(end_, nullptr);
  }
  if (end) end(why);
  return true;
}

absl::StatusOr<std::shared_ptr<OpenCall>> Admission::Open(const CallerIdentity& caller,
                                                          const char* call,
                                                          const std::string& subject, int most) {
  if (!caller.authenticated) return std::make_shared<OpenCall>(nullptr);
  const std::string of_call = absl::StrCat(caller.author, "\n", call);
  const int most_of_call = most > 0 ? most : options_.streams_per_caller;
  absl::Status status;
  std::shared_ptr<OpenCall> open;
  {
    const MutexLock lock(&open_->mutex);
    const auto count = [this](const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(open_->mutex) {
      const auto found = open_->counts.find(name);
      return found == open_->counts.end() ? 0 : found->second;
    };
    const int all_open = count(caller.author), call_open = count(of_call);
    if (all_open >= options_.streams_per_caller) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "streams of ", caller.author, ": ", all_open,
          " are open; allowed: ", options_.streams_per_caller, " (--max-streams-per-caller)"));
    } else if (call_open >= most_of_call) {
      status = absl::ResourceExhaustedError(absl::StrCat("streams of ", caller.author, ": ",
                                                         call_open, " of ", call,
                                                         " are open; allowed: ", most_of_call));
    } else {
      const uint64_t number = ++open_->last;
      ++open_->counts[caller.author];
      ++open_->counts[of_call];
      open = std::make_shared<OpenCall>([calls = open_, number, name = caller.author, of_call] {
        Leave(*calls, number, name, of_call);
      });
      if (!caller.access.token_id.empty() || caller.access.expires_unix_ms > 0) {
        open_->held.emplace(number,
                            std::make_shared<const Held>(Held{caller, call, subject, open}));
      }
    }
  }
  if (status.ok()) return open;
  Record(caller, call, subject, "", status, /*refused=*/true);
  return status;
}

void Admission::Leave(OpenCalls& calls, uint64_t number, const std::string& caller,
                      const std::string& of_call) {
  const MutexLock lock(&calls.mutex);
  calls.held.erase(number);
  for (const std::string& name : {caller, of_call}) {
    const auto found = calls.counts.find(name);
    if (--found->second == 0) calls.counts.erase(found);
  }
}

void Admission::EndInvalid() {
  std::vector<std::shared_ptr<const Held>> held;
  {
    const MutexLock lock(&open_->mutex);
    for (const auto& [number, one] : open_->held) held.push_back(one);
  }
  for (const auto& one : held) {
    const absl::Status valid = CheckStillValid(one->caller);
    if (valid.ok()) continue;
    const std::shared_ptr<OpenCall> open = one->open.lock();
    if (open != nullptr && open->End(valid)) {
      Record(one->caller, one->call, one->subject, "", valid, /*refused=*/true);
    }
  }
}

void Admission::RecordCounts(bool end) {
  if (options_.audit == nullptr) return;
  for (const auto& [address, refusals] : refusal_lines_.TakeCounts(end)) {
    options_.audit->Write({.time_unix_ms = clock_.NowUnixMs(),
                           .from = address,
                           .call = "refusals",
                           .refused = true,
                           .status = absl::ResourceExhaustedError(
                               "refusals of this address that have no lines of their own"),
                           .count = refusals});
  }
}

void Admission::RecordConnection(const std::string& from, const absl::Status& why) {
  CallerIdentity caller;
  caller.from = from;
  caller.peer = PeerHost(from);
  Record(caller, "connection", "", "", why, /*refused=*/true);
}

void Admission::Record(const CallerIdentity& caller, const char* call, const std::string& subject,
                       const std::string& request, const absl::Status& status, bool refused) {
  if (options_.count) options_.count(refused ? "refused" : status.ok() ? "done" : "failed");
  if (options_.audit == nullptr || (refused && !refusal_lines_.Take(caller.peer))) return;
  options_.audit->Write({.time_unix_ms = clock_.NowUnixMs(),
                         .who = caller.author,
                         .role = caller.authenticated ? RoleText(caller.access.role) : "",
                         .proof = caller.authenticated ? caller.access.proof : "none",
                         .from = caller.from,
                         .peer = caller.certificate,
                         .call = call,
                         .subject = subject,
                         .request = request,
                         .refused = refused,
                         .status = status});
}

}  // namespace nibble
