#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/remote/enum_words.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/verb.h"
#include "client/remote/worker_topology.h"
#include "client/shell/command_line.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "common/text/text.h"

namespace nibble {
namespace {

struct WorkerFlags {
  RemoteFlags remote;
  std::string worker, reason;
  bool cordon = false;
  bool clear_flags = false;
};

std::string LastReportText(const v1::Worker& worker, int64_t now_unix_ms) {
  if (!worker.present()) {
    return absl::StrCat("absent, last present ",
                        AgoText(worker.present_since_unix_ms(), now_unix_ms));
  }
  return absl::StrCat(DurationText(static_cast<double>(worker.last_heard_ms()) / 1000), " ago");
}

std::string WorkerTable(const v1::ListWorkersResponse& listed) {
  const int64_t now = absl::ToUnixMillis(absl::Now());
  TextTable table({"WORKER", "MODE", "SLOTS", "USED", "DEVICE", "LAST REPORT", "JOBS", "FLAGS"});
  for (const v1::Worker& worker : listed.workers()) {
    table.Add({worker.identity().name(), Word(worker.mode()),
               absl::StrCat(worker.identity().slots()), absl::StrCat(worker.used_slots()),
               Word(worker.identity().hardware().device()), LastReportText(worker, now),
               Fit(absl::StrJoin(worker.jobs(), ", "), 40),
               Fit(absl::StrJoin(worker.flags(), "; "), 60)});
  }
  return table.Text();
}

std::string WorkerText(const v1::Worker& worker) {
  const v1::WorkerIdentity& identity = worker.identity();
  const v1::Hardware& hardware = identity.hardware();
  const int64_t now = absl::ToUnixMillis(absl::Now());
  TextList list;
  list.Add("worker", absl::StrCat(identity.name(), " at ", identity.address()));
  list.Add("mode", worker.mode_reason().empty()
                       ? Word(worker.mode())
                       : absl::StrCat(Word(worker.mode()), ": ", worker.mode_reason()));
  list.Add("last report", LastReportText(worker, now));
  if (worker.present()) list.Add("present", AgoText(worker.present_since_unix_ms(), now));
  list.Add("slots", absl::StrCat(worker.used_slots(), " of ", identity.slots(), " used"));
  if (worker.sole_shards() > 0) {
    list.Add("only here", absl::StrCat(worker.sole_shards(),
                                       " shards of checkpoints, until other workers have them"));
  }
  std::string device = Word(hardware.device());
  if (!hardware.model().empty()) absl::StrAppend(&device, ", ", hardware.model());
  if (hardware.memory_bytes() > 0) {
    absl::StrAppend(&device, ", ", BytesText(hardware.memory_bytes()), " per slot");
  }
  if (hardware.fp4_tensor_cores()) absl::StrAppend(&device, ", FP4 tensor cores");
  list.Add("device", device);
  if (hardware.store_bytes() > 0) {
    list.Add("store", absl::StrCat(BytesText(hardware.store_bytes()), " for checkpoints"));
  }
  if (worker.trash_bytes() > 0) {
    list.Add("trash", absl::StrCat(BytesText(worker.trash_bytes()), " of deleted checkpoints"));
  }
  for (const v1::Label& label : identity.labels()) {
    list.Add("label", absl::StrCat(label.key(), "=", label.value()));
  }
  if (!worker.jobs().empty()) list.Add("jobs", absl::StrJoin(worker.jobs(), ", "));
  for (const std::string& flag : worker.flags()) list.Add("flag", flag);
  list.Add("daemon", absl::StrCat(identity.version().empty() ? "?" : identity.version(),
                                  ", incarnation ", identity.incarnation()));
  const std::string topology = TopologyTable(identity.topology());
  return topology.empty() ? list.Text() : absl::StrCat(list.Text(), "\n", topology);
}

absl::StatusOr<Reply> ListWorkers(Session& session, const WorkerFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListWorkersResponse all,
                          session.client().CallAllPages(kListWorkers));
  return ReplyOf(all, WorkerTable(all));
}

absl::StatusOr<Reply> Describe(Session& session, const WorkerFlags& flags) {
  v1::DescribeWorkerRequest request;
  request.set_worker(flags.worker);
  NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeWorkerResponse response,
                          session.Call(kDescribeWorker, request));
  return ReplyOf(response.worker(), WorkerText(response.worker()));
}

// Changes the mode of the worker; the reply is its state after that.
template <class Request, class Response>
absl::StatusOr<Reply> ChangeMode(Session& session, const WorkerFlags& flags,
                                 const Rpc<Request, Response>& rpc, Request request) {
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  NIBBLE_ASSIGN_OR_RETURN(const Response response, session.Call(rpc, request));
  const v1::Worker& worker = response.worker();
  std::string line = absl::StrCat(worker.identity().name(), " is ", Word(worker.mode()));
  if (worker.mode() != v1::WORKER_MODE_OPEN && !worker.jobs().empty()) {
    absl::StrAppend(&line, "; it still runs ", absl::StrJoin(worker.jobs(), ", "));
  }
  return ReplyOf(worker, line + "\n");
}

absl::StatusOr<Reply> Drain(Session& session, const WorkerFlags& flags) {
  v1::DrainWorkerRequest request;
  request.set_cordon_only(flags.cordon);
  return ChangeMode(session, flags, kDrainWorker, request);
}

absl::StatusOr<Reply> Uncordon(Session& session, const WorkerFlags& flags) {
  v1::UncordonWorkerRequest request;
  request.set_clear_flags(flags.clear_flags);
  return ChangeMode(session, flags, kUncordonWorker, request);
}

void AddWorkerOption(RemoteVerb<WorkerFlags>& verb) {
  verb.app().Add("WORKER", verb->worker, "a worker's name; see `nibble worker list`").Required();
}

}  // namespace

void AddWorkerNoun(Command app, int& exit_code) {
  const Command worker = NounOf(app, "worker", "Workers: the daemons that own slots");
  RemoteVerb<WorkerFlags> list(worker, "list", "List the workers, by name");
  list.Runs(exit_code, ListWorkers);

  RemoteVerb<WorkerFlags> describe(worker, "describe", "Describe a worker");
  AddWorkerOption(describe);
  describe.Runs(exit_code, Describe);

  RemoteVerb<WorkerFlags> drain(
      worker, "drain", "Checkpoint a worker's jobs, move them elsewhere, and give it no new ones");
  AddWorkerOption(drain);
  drain.app().AddFlag("--cordon", drain->cordon, "only give it no new jobs; running ones stay");
  drain.app().Add("--reason", drain->reason, "the reason, for people");
  drain.Runs(exit_code, Drain);
  drain.app().Footer(
      "Example: nibble worker drain worker-1 --reason 'new fan'\n"
      "`nibble worker uncordon worker-1` makes it schedulable again.");

  RemoteVerb<WorkerFlags> uncordon(worker, "uncordon",
                                   "Make a drained or cordoned worker schedulable again");
  AddWorkerOption(uncordon);
  uncordon.app().AddFlag("--clear-flags", uncordon->clear_flags, "also clear its flags");
  uncordon.app().Add("--reason", uncordon->reason, "the reason, for people");
  uncordon.Runs(exit_code, Uncordon);
}

namespace {

struct QueueFlags {
  RemoteFlags remote;
  std::string queue;
  std::optional<std::string> quota, borrow, cohort;
  std::optional<int64_t> expected_revision;
};

std::string SlotsText(int32_t slots) { return slots < 0 ? "unbounded" : absl::StrCat(slots); }

// -1 for "unbounded"; unset if the text is neither that nor a number from 0.
std::optional<int32_t> SlotsOf(const std::string& text) {
  int32_t slots = 0;
  if (text == "unbounded") return -1;
  if (absl::SimpleAtoi(text, &slots) && slots >= 0) return slots;
  return std::nullopt;
}

// For Option::Check.
std::string IsSlots(const std::string& text) {
  return SlotsOf(text) ? ""
                       : absl::StrCat("'", text, "'; allowed: a whole number from 0, or unbounded");
}

absl::StatusOr<Reply> ListQueues(Session& session, const QueueFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListQueuesResponse all,
                          session.client().CallAllPages(kListQueues));
  TextTable table(
      {"QUEUE", "QUOTA", "BORROWS", "COHORT", "USED", "RUNNING", "WAITING", "REVISION"});
  for (const v1::QueueStatus& status : all.queues()) {
    const v1::Queue& queue = status.queue();
    const v1::QueueUsage& usage = status.usage();
    table.Add({queue.name(), SlotsText(queue.quota_slots()), SlotsText(queue.borrow_slots()),
               queue.cohort(), absl::StrCat(usage.used_slots()), absl::StrCat(usage.running_jobs()),
               absl::StrCat(usage.waiting_jobs()), absl::StrCat(queue.revision())});
  }
  return ReplyOf(all, table.Text());
}

// Unset flags keep their values; a new queue has no quota, borrows nothing and has no cohort. Fails
// if the queue changes between the read and the write.
absl::StatusOr<Reply> SetQueue(Session& session, const QueueFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListQueuesResponse all,
                          session.client().CallAllPages(kListQueues));
  v1::SetQueueRequest request;
  v1::Queue& queue = *request.mutable_queue();
  queue.set_name(flags.queue);
  queue.set_quota_slots(-1);
  for (const v1::QueueStatus& status : all.queues()) {
    if (status.queue().name() == flags.queue) queue = status.queue();
  }
  request.set_expected_revision(flags.expected_revision.value_or(queue.revision()));
  // IsSlots has checked them.
  if (flags.quota) queue.set_quota_slots(SlotsOf(*flags.quota).value_or(0));
  if (flags.borrow) queue.set_borrow_slots(SlotsOf(*flags.borrow).value_or(0));
  if (flags.cohort) queue.set_cohort(*flags.cohort);
  NIBBLE_ASSIGN_OR_RETURN(const v1::SetQueueResponse response, session.Call(kSetQueue, request));
  const v1::Queue& set = response.queue();
  return ReplyOf(set,
                 absl::StrCat(set.name(), ": quota ", SlotsText(set.quota_slots()), ", borrows ",
                              SlotsText(set.borrow_slots()),
                              set.cohort().empty() ? "" : absl::StrCat(", cohort ", set.cohort()),
                              ", revision ", set.revision(), "\n"));
}

absl::StatusOr<Reply> DeleteQueue(Session& session, const QueueFlags& flags) {
  v1::DeleteQueueRequest request;
  request.set_queue(flags.queue);
  request.set_expected_revision(flags.expected_revision.value_or(-1));
  NIBBLE_ASSIGN_OR_RETURN(const v1::DeleteQueueResponse response,
                          session.Call(kDeleteQueue, request));
  return ReplyOf(response, absl::StrCat(flags.queue, " is deleted\n"));
}

}  // namespace

void AddQueueNoun(Command app, int& exit_code) {
  const Command queue = NounOf(app, "queue", "Queues: shares of the cluster");
  RemoteVerb<QueueFlags> list(queue, "list", "List the queues and their use");
  list.Runs(exit_code, ListQueues);

  RemoteVerb<QueueFlags> set(queue, "set",
                             "Create or change a queue; unset options keep their values");
  set.app().Add("QUEUE", set->queue, "a queue's name").Required();
  set.app()
      .Add("--quota", set->quota,
           "slots that its jobs can always have, or unbounded; default of a new queue: unbounded")
      .Check(IsSlots);
  set.app()
      .Add("--borrow", set->borrow,
           "slots beyond the quota that it may borrow while other queues of the cohort leave them "
           "idle, or unbounded; default of a new queue: 0")
      .Check(IsSlots);
  set.app().Add("--cohort", set->cohort,
                "name of the group of queues that lend each other idle slots");
  set.app()
      .Add("--expected-revision", set->expected_revision,
           "refuse the change unless the queue has this revision; 0: unless it does not exist; -1: "
           "never refuse; default: the revision that this command has read")
      .AtLeast(-1);
  set.Runs(exit_code, SetQueue);
  set.app().Footer("Example: nibble queue set nights --quota 4 --borrow 2 --cohort lab");

  RemoteVerb<QueueFlags> drop(queue, "delete", "Delete a queue without unfinished jobs");
  drop.app().Add("QUEUE", drop->queue, "a queue's name, other than default").Required();
  drop.app()
      .Add("--expected-revision", drop->expected_revision,
           "refuse unless the queue has this revision")
      .AtLeast(-1);
  drop.Runs(exit_code, DeleteQueue);
}

}  // namespace nibble
