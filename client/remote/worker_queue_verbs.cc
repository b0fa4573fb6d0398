#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/shell/command_line.h"
#include "client/remote/remote_commands.h"
#include "client/remote/rpcs.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

struct WorkerFlags {
  RemoteFlags remote;
  std::string worker, reason;
  bool cordon = false;
  bool clear_flags = false;
};

std::string HeardText(const v1::Worker& worker, int64_t now_unix_ms) {
  if (!worker.present()) {
    return absl::StrCat("absent, last here ", AgoText(worker.present_since_unix_ms(), now_unix_ms));
  }
  return absl::StrCat(DurationText(static_cast<double>(worker.last_heard_ms()) / 1000), " ago");
}

std::string WorkerTable(const v1::ListWorkersResponse& listed) {
  const int64_t now = absl::ToUnixMillis(absl::Now());
  TextTable table({"WORKER", "MODE", "SLOTS", "USED", "DEVICE", "HEARD", "JOBS", "FLAGS"});
  for (const v1::Worker& worker : listed.workers()) {
    table.Add({worker.identity().name(), Word(worker.mode()),
               absl::StrCat(worker.identity().slots()), absl::StrCat(worker.used_slots()),
               Word(worker.identity().hardware().device()), HeardText(worker, now),
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
  list.Add("heard", HeardText(worker, now));
  if (worker.present()) list.Add("present", AgoText(worker.present_since_unix_ms(), now));
  list.Add("slots", absl::StrCat(worker.used_slots(), " of ", identity.slots(), " used"));
  std::string device = Word(hardware.device());
  if (!hardware.model().empty()) absl::StrAppend(&device, ", ", hardware.model());
  if (hardware.memory_bytes() > 0) {
    absl::StrAppend(&device, ", ", BytesText(hardware.memory_bytes()), " a slot");
  }
  if (hardware.fp4_tensor_cores()) absl::StrAppend(&device, ", FP4 tensor cores");
  list.Add("device", device);
  if (hardware.store_bytes() > 0) {
    list.Add("store", absl::StrCat(BytesText(hardware.store_bytes()), " for checkpoints"));
  }
  for (const v1::Label& label : identity.labels()) {
    list.Add("label", absl::StrCat(label.key(), "=", label.value()));
  }
  if (!worker.jobs().empty()) list.Add("jobs", absl::StrJoin(worker.jobs(), ", "));
  for (const std::string& flag : worker.flags()) list.Add("flag", flag);
  list.Add("daemon", absl::StrCat(identity.version().empty() ? "?" : identity.version(),
                                  ", incarnation ", identity.incarnation()));
  return list.Text();
}

absl::StatusOr<int> ListWorkers(Session& session, const WorkerFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListWorkersResponse all, session.CallAllPages(kListWorkers));
  return session.Finish(all, WorkerTable(all));
}

absl::StatusOr<int> Describe(Session& session, const WorkerFlags& flags) {
  v1::DescribeWorkerRequest request;
  request.set_worker(flags.worker);
  NIBBLE_ASSIGN_OR_RETURN(const v1::DescribeWorkerResponse response,
                          session.Call(kDescribeWorker, request));
  return session.Finish(response.worker(), WorkerText(response.worker()));
}

absl::StatusOr<int> Show(Session& session, const v1::Worker& worker) {
  std::string line = absl::StrCat(worker.identity().name(), " is ", Word(worker.mode()));
  if (worker.mode() != v1::WORKER_MODE_OPEN && !worker.jobs().empty()) {
    absl::StrAppend(&line, "; on it still: ", absl::StrJoin(worker.jobs(), ", "));
  }
  return session.Finish(worker, line + "\n");
}

absl::StatusOr<int> Drain(Session& session, const WorkerFlags& flags) {
  v1::DrainWorkerRequest request;
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  request.set_cordon_only(flags.cordon);
  NIBBLE_ASSIGN_OR_RETURN(const v1::DrainWorkerResponse response,
                          session.Call(kDrainWorker, request));
  return Show(session, response.worker());
}

absl::StatusOr<int> Uncordon(Session& session, const WorkerFlags& flags) {
  v1::UncordonWorkerRequest request;
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  request.set_clear_flags(flags.clear_flags);
  NIBBLE_ASSIGN_OR_RETURN(const v1::UncordonWorkerResponse response,
                          session.Call(kUncordonWorker, request));
  return Show(session, response.worker());
}

void AddWorkerOption(RemoteVerb<WorkerFlags>& verb) {
  verb.app().Add("WORKER", verb->worker, "name, as `nibble worker list` has it").Required();
}

}  // namespace

void AddWorkerNoun(Command app, int& exit_code) {
  const Command worker = NounOf(app, "worker", "The daemons that own slots");
  RemoteVerb<WorkerFlags> list(worker, "list", "Workers, by name");
  list.Runs(exit_code, ListWorkers);

  RemoteVerb<WorkerFlags> describe(worker, "describe", "Everything about a worker");
  AddWorkerOption(describe);
  describe.Runs(exit_code, Describe);

  RemoteVerb<WorkerFlags> drain(
      worker, "drain", "Give it no new work; what runs there moves off through a checkpoint");
  AddWorkerOption(drain);
  drain.app().AddFlag("--cordon", drain->cordon,
                      "Only give it no new work; what runs there goes on");
  drain.app().Add("--reason", drain->reason, "why, for people");
  drain.Runs(exit_code, Drain);
  drain.app().Footer(
      "Example: nibble worker drain worker-1 --reason 'new fan'; `uncordon` takes it back");

  RemoteVerb<WorkerFlags> uncordon(worker, "uncordon", "Give it work again");
  AddWorkerOption(uncordon);
  uncordon.app().AddFlag("--clear-flags", uncordon->clear_flags,
                         "Also forget what it was flagged for");
  uncordon.app().Add("--reason", uncordon->reason, "why, for people");
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

// Unset unless the text is a number from 0 or "unbounded".
std::optional<int32_t> SlotsOf(const std::string& text) {
  int32_t slots = 0;
  if (text == "unbounded") return -1;
  if (absl::SimpleAtoi(text, &slots) && slots >= 0) return slots;
  return std::nullopt;
}

// For Option::Check.
std::string IsSlots(const std::string& text) {
  return SlotsOf(text) ? "" : absl::StrCat("'", text, "'; allowed: 0 and more, or unbounded");
}

absl::StatusOr<int> ListQueues(Session& session, const QueueFlags&) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListQueuesResponse all, session.CallAllPages(kListQueues));
  TextTable table(
      {"QUEUE", "QUOTA", "BORROWS", "COHORT", "USED", "RUNNING", "WAITING", "REVISION"});
  for (const v1::QueueStatus& status : all.queues()) {
    const v1::Queue& queue = status.queue();
    const v1::QueueUsage& usage = status.usage();
    table.Add({queue.name(), SlotsText(queue.quota_slots()), SlotsText(queue.borrow_slots()),
               queue.cohort(), absl::StrCat(usage.used_slots()), absl::StrCat(usage.running_jobs()),
               absl::StrCat(usage.waiting_jobs()), absl::StrCat(queue.revision())});
  }
  return session.Finish(all, table.Text());
}

// Unset flags keep their values; a new queue has no bound, borrows nothing and has no cohort. Fails
// if the queue is changed between the read and the write.
absl::StatusOr<int> SetQueue(Session& session, const QueueFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListQueuesResponse all, session.CallAllPages(kListQueues));
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
  return session.Finish(
      set, absl::StrCat(set.name(), ": quota ", SlotsText(set.quota_slots()), ", borrows ",
                        SlotsText(set.borrow_slots()),
                        set.cohort().empty() ? "" : absl::StrCat(", cohort ", set.cohort()),
                        ", revision ", set.revision(), "\n"));
}

absl::StatusOr<int> DeleteQueue(Session& session, const QueueFlags& flags) {
  v1::DeleteQueueRequest request;
  request.set_queue(flags.queue);
  request.set_expected_revision(flags.expected_revision.value_or(-1));
  NIBBLE_ASSIGN_OR_RETURN(const v1::DeleteQueueResponse response,
                          session.Call(kDeleteQueue, request));
  return session.Finish(response, absl::StrCat(flags.queue, " is deleted\n"));
}

}  // namespace

void AddQueueNoun(Command app, int& exit_code) {
  const Command queue = NounOf(app, "queue", "Shares of the cluster");
  RemoteVerb<QueueFlags> list(queue, "list", "Queues and their use");
  list.Runs(exit_code, ListQueues);

  RemoteVerb<QueueFlags> set(queue, "set", "Make or change a queue; what is not given stays");
  set.app().Add("QUEUE", set->queue, "name").Required();
  set.app()
      .Add("--quota", set->quota, "slots its jobs can always have, or unbounded, as a new queue is")
      .Check(IsSlots);
  set.app()
      .Add("--borrow", set->borrow,
           "slots beyond the quota while others of the cohort leave them idle, or "
           "unbounded; a new queue borrows none")
      .Check(IsSlots);
  set.app().Add("--cohort", set->cohort,
                "name that queues share which lend each other what is idle");
  set.app()
      .Add("--expected-revision", set->expected_revision,
           "only if this is its revision; 0: only if it does not exist; -1: in any case; "
           "where not given, if nobody changes it meanwhile")
      .AtLeast(-1);
  set.Runs(exit_code, SetQueue);
  set.app().Footer("Example: nibble queue set nights --quota 4 --borrow 2 --cohort lab");

  RemoteVerb<QueueFlags> drop(queue, "delete", "Remove a queue that no unfinished job is in");
  drop.app().Add("QUEUE", drop->queue, "name; not default").Required();
  drop.app()
      .Add("--expected-revision", drop->expected_revision, "only if this is its revision")
      .AtLeast(-1);
  drop.Runs(exit_code, DeleteQueue);
}

}  // namespace nibble
