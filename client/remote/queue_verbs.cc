#include "client/remote/queue_verbs.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/local/exit_code.h"
#include "client/local/noun.h"
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

absl::StatusOr<int32_t> SlotsOf(const char* name, const std::string& text) {
  int32_t slots = 0;
  if (text == "unbounded") return -1;
  if (absl::SimpleAtoi(text, &slots) && slots >= 0) return slots;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": '", text, "'; allowed: 0 and more, or unbounded"));
}

absl::StatusOr<v1::ListQueuesResponse> ListAll(Session& session) {
  v1::ListQueuesRequest request;
  request.mutable_page()->set_size(1000);
  v1::ListQueuesResponse all;
  do {
    const absl::StatusOr<v1::ListQueuesResponse> page = session.Call(&Stub::ListQueues, request);
    if (!page.ok()) return page.status();
    request.mutable_page()->set_token(page->next_token());
    all.mutable_queues()->MergeFrom(page->queues());
  } while (!request.page().token().empty());
  return all;
}

absl::StatusOr<int> List(Session& session, const Flags&) {
  const absl::StatusOr<v1::ListQueuesResponse> all = ListAll(session);
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
  const absl::Status status = session.Print(*all, table.Text());
  if (!status.ok()) return status;
  return kExitDone;
}

// What is not given stays; of a new queue: no bound, nothing borrowed, no cohort. Between the look
// and the change nobody else may have changed it.
absl::StatusOr<int> Set(Session& session, const Flags& flags) {
  const absl::StatusOr<v1::ListQueuesResponse> all = ListAll(session);
  if (!all.ok()) return all.status();
  v1::SetQueueRequest request;
  v1::Queue& queue = *request.mutable_queue();
  queue.set_name(flags.queue);
  queue.set_quota_slots(-1);
  for (const v1::QueueStatus& status : all->queues()) {
    if (status.queue().name() == flags.queue) queue = status.queue();
  }
  request.set_expected_revision(flags.expected_revision.value_or(queue.revision()));
  if (flags.quota) {
    const absl::StatusOr<int32_t> slots = SlotsOf("--quota", *flags.quota);
    if (!slots.ok()) return slots.status();
    queue.set_quota_slots(*slots);
  }
  if (flags.borrow) {
    const absl::StatusOr<int32_t> slots = SlotsOf("--borrow", *flags.borrow);
    if (!slots.ok()) return slots.status();
    queue.set_borrow_slots(*slots);
  }
  if (flags.cohort) queue.set_cohort(*flags.cohort);
  const absl::StatusOr<v1::SetQueueResponse> response = session.Call(&Stub::SetQueue, request);
  if (!response.ok()) return response.status();
  const v1::Queue& set = response->queue();
  const absl::Status status = session.Print(
      set, absl::StrCat(set.name(), ": quota ", SlotsText(set.quota_slots()), ", borrows ",
                        SlotsText(set.borrow_slots()),
                        set.cohort().empty() ? "" : absl::StrCat(", cohort ", set.cohort()),
                        ", revision ", set.revision(), "\n"));
  if (!status.ok()) return status;
  return kExitDone;
}

absl::StatusOr<int> Delete(Session& session, const Flags& flags) {
  v1::DeleteQueueRequest request;
  request.set_queue(flags.queue);
  request.set_expected_revision(flags.expected_revision.value_or(-1));
  const absl::StatusOr<v1::DeleteQueueResponse> response =
      session.Call(&Stub::DeleteQueue, request);
  if (!response.ok()) return response.status();
  const absl::Status status = session.Print(*response, absl::StrCat(flags.queue, " is deleted\n"));
  if (!status.ok()) return status;
  return kExitDone;
}

}  // namespace

void AddQueueNoun(CLI::App& app, int& exit_code) {
  CLI::App* const queue = NounOf(app, "queue", "Shares of the cluster");
  RemoteVerb<Flags> list(queue, "list", "Queues and their use");
  list.Runs(exit_code, List);

  RemoteVerb<Flags> set(queue, "set", "Make or change a queue; what is not given stays");
  set.app()->add_option("QUEUE", set->queue, "name")->required();
  set.app()->add_option("--quota", set->quota, "slots its jobs can always have, or unbounded");
  set.app()->add_option("--borrow", set->borrow, "slots beyond the quota, or unbounded");
  set.app()->add_option("--cohort", set->cohort, "queues that lend each other what is idle");
  set.app()
      ->add_option("--expected-revision", set->expected_revision,
                   "only if this is its revision; 0: only if it does not exist; -1: in any case")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 60));
  set.Runs(exit_code, Set);

  RemoteVerb<Flags> drop(queue, "delete", "Remove a queue that no unfinished job is in");
  drop.app()->add_option("QUEUE", drop->queue, "name; not default")->required();
  drop.app()
      ->add_option("--expected-revision", drop->expected_revision, "only if this is its revision")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 60));
  drop.Runs(exit_code, Delete);
}

}  // namespace nibble
