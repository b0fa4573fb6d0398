#include "client/remote/queue_verbs.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/local/noun.h"
#include "client/local/number_check.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

struct Flags {
  RemoteFlags remote;
  std::string queue;
  std::optional<std::string> quota, borrow, cohort;
  std::optional<int64_t> expected_revision;
};

std::string SlotsText(int32_t slots) { return slots < 0 ? "unbounded" : absl::StrCat(slots); }

// Unset where the text is neither 0 and more nor "unbounded".
std::optional<int32_t> SlotsOf(const std::string& text) {
  int32_t slots = 0;
  if (text == "unbounded") return -1;
  if (absl::SimpleAtoi(text, &slots) && slots >= 0) return slots;
  return std::nullopt;
}

// A check of the command line.
std::string IsSlots(const std::string& text) {
  return SlotsOf(text) ? "" : absl::StrCat("'", text, "'; allowed: 0 and more, or unbounded");
}

absl::StatusOr<int> List(Session& session, const Flags&) {
  const absl::StatusOr<v1::ListQueuesResponse> all = session.CallAllPages(&Stub::ListQueues);
  if (!all.ok()) return all.status();
  TextTable table(
      {"QUEUE", "QUOTA", "BORROWS", "COHORT", "USED", "RUNNING", "WAITING", "REVISION"});
  for (const v1::QueueStatus& status : all->queues()) {
    const v1::Queue& queue = status.queue();
    const v1::QueueUsage& usage = status.usage();
    table.Add({queue.name(), SlotsText(queue.quota_slots()), SlotsText(queue.borrow_slots()),
               queue.cohort(), absl::StrCat(usage.used_slots()), absl::StrCat(usage.running_jobs()),
               absl::StrCat(usage.waiting_jobs()), absl::StrCat(queue.revision())});
  }
  return session.Finish(*all, table.Text());
}

// What is not given stays; of a new queue: no bound, nothing borrowed, no cohort. Between the look
// and the change nobody else may have changed it.
absl::StatusOr<int> Set(Session& session, const Flags& flags) {
  const absl::StatusOr<v1::ListQueuesResponse> all = session.CallAllPages(&Stub::ListQueues);
  if (!all.ok()) return all.status();
  v1::SetQueueRequest request;
  v1::Queue& queue = *request.mutable_queue();
  queue.set_name(flags.queue);
  queue.set_quota_slots(-1);
  for (const v1::QueueStatus& status : all->queues()) {
    if (status.queue().name() == flags.queue) queue = status.queue();
  }
  request.set_expected_revision(flags.expected_revision.value_or(queue.revision()));
  // IsSlots has looked at them.
  if (flags.quota) queue.set_quota_slots(SlotsOf(*flags.quota).value_or(0));
  if (flags.borrow) queue.set_borrow_slots(SlotsOf(*flags.borrow).value_or(0));
  if (flags.cohort) queue.set_cohort(*flags.cohort);
  const absl::StatusOr<v1::SetQueueResponse> response = session.Call(&Stub::SetQueue, request);
  if (!response.ok()) return response.status();
  const v1::Queue& set = response->queue();
  return session.Finish(
      set, absl::StrCat(set.name(), ": quota ", SlotsText(set.quota_slots()), ", borrows ",
                        SlotsText(set.borrow_slots()),
                        set.cohort().empty() ? "" : absl::StrCat(", cohort ", set.cohort()),
                        ", revision ", set.revision(), "\n"));
}

absl::StatusOr<int> Delete(Session& session, const Flags& flags) {
  v1::DeleteQueueRequest request;
  request.set_queue(flags.queue);
  request.set_expected_revision(flags.expected_revision.value_or(-1));
  const absl::StatusOr<v1::DeleteQueueResponse> response =
      session.Call(&Stub::DeleteQueue, request);
  if (!response.ok()) return response.status();
  return session.Finish(*response, absl::StrCat(flags.queue, " is deleted\n"));
}

}  // namespace

void AddQueueNoun(CLI::App& app, int& exit_code) {
  CLI::App* const queue = NounOf(app, "queue", "Shares of the cluster");
  const CLI::Validator kRevision = WholeNumber(-1, std::numeric_limits<int64_t>::max());
  RemoteVerb<Flags> list(queue, "list", "Queues and their use");
  list.Runs(exit_code, List);

  RemoteVerb<Flags> set(queue, "set", "Make or change a queue; what is not given stays");
  set.app()->add_option("QUEUE", set->queue, "name")->required();
  set.app()
      ->add_option("--quota", set->quota,
                   "slots its jobs can always have, or unbounded, as a new queue is")
      ->check(IsSlots);
  set.app()
      ->add_option("--borrow", set->borrow,
                   "slots beyond the quota while others of the cohort leave them idle, or "
                   "unbounded; a new queue borrows none")
      ->check(IsSlots);
  set.app()->add_option("--cohort", set->cohort,
                        "name that queues share which lend each other what is idle");
  set.app()
      ->add_option("--expected-revision", set->expected_revision,
                   "only if this is its revision; 0: only if it does not exist; -1: in any case; "
                   "where not given, if nobody changes it meanwhile")
      ->check(kRevision);
  set.Runs(exit_code, Set);
  set.app()->footer("Example: nibble queue set nights --quota 4 --borrow 2 --cohort lab");

  RemoteVerb<Flags> drop(queue, "delete", "Remove a queue that no unfinished job is in");
  drop.app()->add_option("QUEUE", drop->queue, "name; not default")->required();
  drop.app()
      ->add_option("--expected-revision", drop->expected_revision, "only if this is its revision")
      ->check(kRevision);
  drop.Runs(exit_code, Delete);
}

}  // namespace nibble
