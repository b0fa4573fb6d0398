// Who a caller is, and whether its call is admitted. This is the one place where a call's context
// becomes an identity and is compared with the table of rights (server/access/access_table.h); the
// services use nothing else of the context. Refusals, and the outcomes of changes, go to the audit
// log from here.
//
// Refusals of one caller go out one after the other, at the pace of RateLimits; the calls wait for
// them, at most kWaitingRefusals of all callers. A caller that floods, by RateLimiter::Refuse,
// loses the connection of its call.
//
// If callers are not authenticated, on loopback or with --insecure, every call is admitted, and the
// author of a change is whatever the caller puts into the metadata `nibble-author`, or "anonymous":
// a name for people to read, without any rights.
//
// Ownership: limits are owned; the clock, the authenticator and the audit log are borrowed.
// Thread-safety: all methods may be called from any thread.
#ifndef NIBBLE_SERVER_SERVICE_ADMISSION_H_
#define NIBBLE_SERVER_SERVICE_ADMISSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "server/access/access_table.h"
#include "server/access/audit_log.h"
#include "server/access/authenticator.h"
#include "server/controller/clock.h"
#include "server/service/rate_limiter.h"
#include "server/service/refusal_lines.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf
namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace nibble {

inline constexpr char kAuthorMetadata[] = "nibble-author";

struct CallerIdentity {
  std::string author;       // the author of the caller's changes
  std::string peer;         // address without port
  std::string from;         // address with port
  std::string certificate;  // name in its certificate; empty: none
  // With the role OPERATOR and an empty proof if callers are not authenticated.
  AccessCaller access;
  bool authenticated = false;
};

// What a refused call ends with, and when.
struct Refusal {
  absl::Status status;
  int64_t after_ms = 0;
  std::shared_ptr<const void> place;  // among the refusals that wait; kept until the call is over
};

// A call that stays open: its place among its caller's, and how it ends if its caller is no longer
// who it was. Kept by the call until it is over.
//
// Ownership: shared by the call and, weakly, by Admission. Thread-safety: all methods.
class OpenCall {
 public:
  explicit OpenCall(std::function<void()> leave) : leave_(std::move(leave)) {}
  ~OpenCall() {
    if (leave_) leave_();
  }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  // `end` is called once, without a lock, when the call is to end, perhaps at once. Called once.
  void EndWith(std::function<void(const absl::Status& why)> end);
  // Ends the call. False: it was ended before.
  bool End(const absl::Status& why);

 private:
  const std::function<void()> leave_;
  Mutex mutex_;
  std::function<void(const absl::Status&)> end_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> why_ ABSL_GUARDED_BY(mutex_);  // set: it has ended
};

// What rights to a job depend on.
struct JobRights {
  std::string owner;
  std::string project;  // empty: none
};

class Admission {
 public:
  struct Options {
    RateLimits rate;
    int streams_per_caller = 256;            // open calls of one authenticated caller
    bool tls = false;                        // every connection has a certificate
    Authenticator* authenticator = nullptr;  // null: callers are not authenticated
    AuditLog* audit = nullptr;               // null: none
    // Unset if there is no such job.
    std::function<std::optional<JobRights>(const std::string& job)> rights_of;
    // Receives "done", "failed" or "refused" for each audited call; may be null.
    std::function<void(const char* outcome)> count;
    // Ends the connection of a flooding caller, as gRPC names peers; whether it was open. May be
    // null.
    std::function<bool(const std::string& from)> end_connection;
  };

  Admission(const Clock& clock, Options options)
      : clock_(clock),
        options_(std::move(options)),
        limiter_(clock, options_.rate),
        refusal_lines_(clock, RefusalLines::Limits()) {}

  // Unset: the call is refused, as `refusal` says.
  // `call`: the path of the call. `request`: null if it has none yet, or one that must not be used.
  //   ResourceExhausted   too many requests of this caller
  //   InvalidArgument     the metadata is no name of 1 to kMaxAuthorBytes
  //   Unauthenticated     no valid certificate or token
  //   PermissionDenied    the role does not allow the call, the job is another owner's or of
  //                       another project, or the call has no row in the table
  //   NotFound            for a submitter, or a caller that is bound to projects: there is no such
  //                       job, or it is of another project
  std::optional<CallerIdentity> Admit(const grpc::CallbackServerContext& context, const char* call,
                                      const google::protobuf::Message* request, Refusal& refusal);
  // A call that anybody may make, as often as its address may. The caller has its addresses alone.
  // Unset: the call is refused, as `refusal` says.
  //   ResourceExhausted   too many requests of this address
  std::optional<CallerIdentity> AdmitAnybody(const grpc::CallbackServerContext& context,
                                             const char* call, Refusal& refusal);
  // The refusal of a call that was admitted, recorded and with its turn.
  Refusal Refuse(const CallerIdentity& caller, const char* call, absl::Status why);
  // Whether a caller on an open stream still has its identity.
  absl::Status CheckStillValid(const CallerIdentity& caller) const;

  // A place for a call among the caller's open ones, and among those to `call`, of which it may
  // have `most`; 0: as many as of all. ResourceExhausted: it has too many, and the refusal is
  // recorded.
  absl::StatusOr<std::shared_ptr<OpenCall>> Open(const CallerIdentity& caller, const char* call,
                                                 const std::string& subject, int most = 0);
  // Ends the open calls whose callers have lost their identity: their token was revoked, or has
  // expired. To be called about once a second, and after each revocation.
  void EndInvalid();

  // Records a call that the table declares a change, or a refusal. `subject` and `request`: of
  // AuditEntry. Refusals of one address beyond a rate are counted (RefusalLines): a flood of them
  // must not push what was done out of the log.
  void Record(const CallerIdentity& caller, const char* call, const std::string& subject,
              const std::string& request, const absl::Status& status, bool refused = false);
  // Records how many refusals have no line of their own, now and then and at the end. To be called
  // about once a second.
  void RecordCounts(bool end = false);
  // Records a connection that reached no call. `from`: as gRPC names peers.
  void RecordConnection(const std::string& from, const absl::Status& why);

  // Null if callers are not authenticated.
  Authenticator* authenticator() const { return options_.authenticator; }
  const Clock& clock() const { return clock_; }

 private:
  // A call that waits for its refusal holds gRPC's part of a call, and no request any more.
  static constexpr int kWaitingRefusals = 4096;

  struct Held {
    CallerIdentity caller;
    const char* call;
    std::string subject;
    std::weak_ptr<OpenCall> open;
  };
  struct OpenCalls {
    Mutex mutex;
    // By caller, and by caller and call.
    absl::flat_hash_map<std::string, int> counts ABSL_GUARDED_BY(mutex);
    // Of callers whose identity can be taken back.
    absl::flat_hash_map<uint64_t, std::shared_ptr<const Held>> held ABSL_GUARDED_BY(mutex);
    uint64_t last ABSL_GUARDED_BY(mutex) = 0;
  };

  // When the refusal goes out. Ends the connection of a caller that floods.
  void Pace(const CallerIdentity& caller, Refusal& refusal);
  absl::Status Identify(const grpc::CallbackServerContext& context, CallerIdentity& caller);
  absl::Status CheckRights(const CallerIdentity& caller, const char* call,
                           const google::protobuf::Message* request) const;
  // `owns`: the job must be the caller's own.
  absl::Status CheckJobRights(const CallerIdentity& caller, bool owns,
                              const google::protobuf::Message& request) const;
  static void Leave(OpenCalls& calls, uint64_t number, const std::string& caller,
                    const std::string& of_call);

  const Clock& clock_;
  const Options options_;
  RateLimiter limiter_;
  RefusalLines refusal_lines_;
  const std::shared_ptr<std::atomic<int>> waiting_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<OpenCalls> open_ = std::make_shared<OpenCalls>();
};

// The peer without its port: "ipv4:10.0.0.7" for "ipv4:10.0.0.7:41234". A peer without a port is
// returned unchanged.
std::string PeerHost(absl::string_view peer);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_ADMISSION_H_
