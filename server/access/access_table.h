// The rights of every call of the coordinator, in one table. A call without a row is refused, and a
// test compares the table with the descriptors of all services.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_ACCESS_ACCESS_TABLE_H_
#define NIBBLE_SERVER_ACCESS_ACCESS_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"
#include "proto/nibble/v1/access.pb.h"

namespace nibble {

// What a call shows or changes of jobs, and so what it does for a caller that is bound to projects,
// to whom jobs of other projects do not exist.
enum class JobScope : uint8_t {
  kUndecided,  // in no row: a test fails
  kNothing,    // no job
  kJob,        // the job that the request names; of another project: NotFound
  kJobs,       // the service leaves out jobs of other projects (server/controller/project_view.h)
  kCluster,    // everybody's jobs, or who may see them: PermissionDenied
};

struct AccessRow {
  const char* call;  // such as "/nibble.v1.Coordinator/ListJobs"
  v1::Role role;     // the least that may make it; UNSPECIFIED: everybody
  JobScope scope = JobScope::kUndecided;
  bool own_job = false;     // a submitter only for a job that it owns
  bool change = false;      // it changes something: every outcome is audited
  bool own_worker = false;  // also a worker, for itself (CheckOwnWorker)
};

absl::Span<const AccessRow> AccessTable();

// Null: there is no such call. A request for a trace, which delays the steps of the job, needs what
// a change of the job does.
const AccessRow* FindAccess(absl::string_view call,
                            const google::protobuf::Message* request = nullptr);

inline constexpr char kBootstrapName[] = "bootstrap";

// InvalidArgument, naming `field`, unless the text is a name (common/identity/peer_name.h) that a
// token or JWT may carry: those under which the coordinator itself makes changes are reserved.
absl::Status CheckCallerName(absl::string_view field, absl::string_view name);

// "viewer"; "nobody" for ROLE_UNSPECIFIED.
std::string RoleText(v1::Role role);
// ROLE_UNSPECIFIED: no role has this name.
v1::Role RoleOfText(absl::string_view text);

// PermissionDenied, naming both roles, unless the role includes the row's: operators may do what
// submitters may, and these what viewers may; the role of workers includes no other and is included
// in none. A worker passes a row with own_worker, and then needs CheckOwnWorker.
absl::Status CheckRole(const AccessRow& row, v1::Role role, absl::string_view name);

// For a worker's call of a row with own_worker: PermissionDenied unless the request, which may be
// null, names the worker `name`, and leaves its flags to an operator.
absl::Status CheckOwnWorker(const AccessRow& row, absl::string_view name,
                            const google::protobuf::Message* request);

// The job that a request is about: its field `job`, or that of its CheckpointRef `ref` or
// `checkpoint`. Empty: none.
std::string JobOfRequest(const google::protobuf::Message& request);

// What a request or response is about, for people: "job train-7", "job train-7 step 300", "worker
// w1", "queue nights", "token 0123456789ab". Empty: nothing in particular.
std::string SubjectOf(const google::protobuf::Message& message);

}  // namespace nibble

#endif  // NIBBLE_SERVER_ACCESS_ACCESS_TABLE_H_
