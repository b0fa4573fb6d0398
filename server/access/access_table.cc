#include "server/access/access_table.h"

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/identity/peer_name.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr v1::Role kEverybody = v1::ROLE_UNSPECIFIED;
constexpr v1::Role kViewer = v1::ROLE_VIEWER;
constexpr v1::Role kSubmitter = v1::ROLE_SUBMITTER;
constexpr v1::Role kOperator = v1::ROLE_OPERATOR;
constexpr v1::Role kWorker = v1::ROLE_WORKER;

constexpr JobScope kNothing = JobScope::kNothing;
constexpr JobScope kJob = JobScope::kJob;
constexpr JobScope kJobs = JobScope::kJobs;
constexpr JobScope kCluster = JobScope::kCluster;

#define NIBBLE_READ(Verb, Scope) \
  { "/nibble.v1.Coordinator/" #Verb, kViewer, Scope }
#define NIBBLE_OWN(Verb) \
  { "/nibble.v1.Coordinator/" #Verb, kSubmitter, kJob, true, true }
#define NIBBLE_OPERATE(Verb) \
  { "/nibble.v1.Coordinator/" #Verb, kOperator, kCluster, false, true }
// An operator, and a worker for itself: it drains itself before it stops.
#define NIBBLE_OPERATE_WORKER(Verb) \
  { "/nibble.v1.Coordinator/" #Verb, kOperator, kCluster, false, true, true }

constexpr AccessRow kRows[] = {
    // New jobs belong to their submitter. A fork reads its parent, as every viewer of it may; so
    // does a new job that begins from another's weights, which its decision checks.
    {"/nibble.v1.Coordinator/SubmitJob", kSubmitter, kJobs, false, true},
    {"/nibble.v1.Coordinator/ForkJob", kSubmitter, kJob, false, true},
    NIBBLE_OWN(PauseJob),
    NIBBLE_OWN(ResumeJob),
    NIBBLE_OWN(CheckpointJob),
    NIBBLE_OWN(CancelJob),
    NIBBLE_OWN(KillJob),
    NIBBLE_OWN(SetJobPriority),
    NIBBLE_OWN(SetJobRestartPolicy),
    NIBBLE_OWN(SetRecipe),
    NIBBLE_OWN(RollbackRecipe),
    NIBBLE_OWN(VerifyCheckpoint),
    NIBBLE_OWN(ExportCheckpoint),
    NIBBLE_OWN(PinCheckpoint),
    NIBBLE_OWN(UnpinCheckpoint),
    NIBBLE_OWN(DeleteCheckpoint),
    NIBBLE_OWN(RestoreCheckpoint),
    NIBBLE_OPERATE(AdoptJob),
    NIBBLE_OPERATE(RemoveOrphan),
    NIBBLE_OPERATE_WORKER(DrainWorker),
    NIBBLE_OPERATE_WORKER(UncordonWorker),
    NIBBLE_OPERATE(SetQueue),
    NIBBLE_OPERATE(DeleteQueue),
    NIBBLE_READ(ListJobs, kJobs),
    NIBBLE_READ(DescribeJob, kJob),
    NIBBLE_READ(WatchJobs, kJobs),
    NIBBLE_READ(StreamLogs, kJob),
    NIBBLE_READ(ListJobEvents, kJob),
    NIBBLE_READ(WaitJob, kJob),
    NIBBLE_READ(GetJobMetrics, kJob),
    NIBBLE_READ(GetRecipe, kJob),
    NIBBLE_READ(DiffRecipe, kJob),
    NIBBLE_READ(ListRecipeRevisions, kJob),
    NIBBLE_READ(ListRecipePresets, kNothing),
    NIBBLE_READ(GetRecipeCost, kJob),
    NIBBLE_READ(ListCheckpoints, kJob),
    NIBBLE_READ(DescribeCheckpoint, kJob),
    NIBBLE_READ(ListTrash, kJobs),
    NIBBLE_READ(ListDeletions, kJob),
    NIBBLE_READ(ListOrphans, kJobs),
    NIBBLE_READ(ListWorkers, kJobs),
    {"/nibble.v1.Coordinator/DescribeWorker", kViewer, kJobs, false, false, true},
    NIBBLE_READ(ListQueues, kNothing),
    {"/nibble.v1.Access/CreateToken", kOperator, kCluster, false, true},
    {"/nibble.v1.Access/ListTokens", kOperator, kCluster},
    {"/nibble.v1.Access/RevokeToken", kOperator, kCluster, false, true},
    {"/nibble.v1.WorkerLink/Connect", kWorker, kNothing, false, true},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", kViewer, kNothing},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kViewer, kNothing},
    // Served by gRPC itself, for probes.
    {"/grpc.health.v1.Health/Check", kEverybody, kNothing},
    {"/grpc.health.v1.Health/Watch", kEverybody, kNothing},
};

constexpr AccessRow kTraceRow = {"/nibble.v1.Coordinator/StreamLogs", kSubmitter, kJob, true};

#undef NIBBLE_READ
#undef NIBBLE_OWN
#undef NIBBLE_OPERATE
#undef NIBBLE_OPERATE_WORKER

const FieldDescriptor* FieldOf(const Message& message, const char* name,
                               FieldDescriptor::CppType type) {
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(name);
  const bool fits = field != nullptr && field->cpp_type() == type && !field->is_repeated();
  return fits ? field : nullptr;
}

// The text of a singular string field; empty if the message has no such field.
std::string TextField(const Message& message, const char* name) {
  const auto* const field = FieldOf(message, name, FieldDescriptor::CPPTYPE_STRING);
  return field == nullptr ? "" : message.GetReflection()->GetString(message, field);
}

// A singular message field that is set; null if there is none.
const Message* PartOf(const Message& message, const char* name) {
  const auto* const field = FieldOf(message, name, FieldDescriptor::CPPTYPE_MESSAGE);
  if (field == nullptr || !message.GetReflection()->HasField(message, field)) return nullptr;
  return &message.GetReflection()->GetMessage(message, field);
}

std::string Named(const char* kind, const std::string& name) {
  return name.empty() ? "" : absl::StrCat(kind, " ", name);
}

std::string CheckpointText(const Message& ref) {
  const auto* const step = FieldOf(ref, "step", FieldDescriptor::CPPTYPE_INT64);
  const std::string job = TextField(ref, "job");
  if (job.empty() || step == nullptr) return Named("job", job);
  return absl::StrCat("job ", job, " step ", ref.GetReflection()->GetInt64(ref, step));
}

}  // namespace

absl::Span<const AccessRow> AccessTable() { return kRows; }

const AccessRow* FindAccess(absl::string_view call, const Message* request) {
  if (request != nullptr && call == kTraceRow.call) {
    const auto* const steps = FieldOf(*request, "trace_steps", FieldDescriptor::CPPTYPE_INT32);
    if (steps != nullptr && request->GetReflection()->GetInt32(*request, steps) != 0) {
      return &kTraceRow;
    }
  }
  static const auto* const rows = [] {
    auto* const made = new absl::flat_hash_map<absl::string_view, const AccessRow*>;
    for (const AccessRow& row : kRows) made->emplace(row.call, &row);
    return made;
  }();
  const auto found = rows->find(call);
  return found == rows->end() ? nullptr : found->second;
}

absl::Status CheckCallerName(absl::string_view field, absl::string_view name) {
  NIBBLE_RETURN_IF_ERROR(CheckIdentityName(field, name));
  for (const absl::string_view reserved : {kBootstrapName, "coordinator", "guard"}) {
    if (name != reserved) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": '", name, "' is reserved for the coordinator's own changes"));
  }
  return absl::OkStatus();
}

std::string RoleText(v1::Role role) {
  if (role == v1::ROLE_UNSPECIFIED || !v1::Role_IsValid(role)) return "nobody";
  return absl::AsciiStrToLower(v1::Role_Name(role).substr(sizeof("ROLE_") - 1));
}

v1::Role RoleOfText(absl::string_view text) {
  for (const v1::Role role : {kViewer, kSubmitter, kOperator, kWorker}) {
    if (text == RoleText(role)) return role;
  }
  return v1::ROLE_UNSPECIFIED;
}

absl::Status CheckRole(const AccessRow& row, v1::Role role, absl::string_view name) {
  if (row.role == kEverybody || (row.own_worker && role == kWorker)) return absl::OkStatus();
  const bool people = row.role != kWorker && role != kWorker && role != v1::ROLE_UNSPECIFIED;
  if (people ? role >= row.role : role == row.role) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(row.call, ": ", name, " is ", RoleText(role), "; allowed: ", RoleText(row.role),
                   row.role == kViewer || row.role == kSubmitter ? " and above" : ""));
}

absl::Status CheckOwnWorker(const AccessRow& row, absl::string_view name, const Message* request) {
  const std::string worker = request == nullptr ? "" : TextField(*request, "worker");
  if (worker != name) {
    return absl::PermissionDeniedError(absl::StrCat(row.call, ": the caller is worker ", name,
                                                    " and names '", worker,
                                                    "'; allowed of a worker: itself"));
  }
  const auto* const clears = FieldOf(*request, "clear_flags", FieldDescriptor::CPPTYPE_BOOL);
  if (clears == nullptr || !request->GetReflection()->GetBool(*request, clears)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(row.call, ": clear_flags: ", name, " is worker; allowed: operator"));
}

std::string JobOfRequest(const Message& request) {
  std::string job = TextField(request, "job");
  if (!job.empty()) return job;
  for (const char* const part : {"ref", "checkpoint"}) {
    if (const Message* const ref = PartOf(request, part)) return TextField(*ref, "job");
  }
  return "";
}

std::string SubjectOf(const Message& message) {
  if (const Message* const ref = PartOf(message, "ref")) return CheckpointText(*ref);
  if (const Message* const parent = PartOf(message, "checkpoint")) {
    const Message* const ref = PartOf(*parent, "ref");
    return CheckpointText(ref == nullptr ? *parent : *ref);
  }
  for (const char* const kind : {"job", "worker", "queue", "token"}) {
    if (std::string named = Named(kind, TextField(message, kind)); !named.empty()) return named;
    const Message* const part = PartOf(message, kind);
    if (part == nullptr) continue;
    for (const char* const key : {"id", "name"}) {
      if (std::string named = Named(kind, TextField(*part, key)); !named.empty()) return named;
    }
  }
  return Named("token", message.GetDescriptor()->full_name() == "nibble.v1.RevokeTokenRequest"
                            ? TextField(message, "id")
                            : "");
}

}  // namespace nibble
