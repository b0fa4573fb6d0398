#include "server/scheduler/testing/apply.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble::scheduler::testing {
namespace {

std::string Words(const Placement& placement) {
  std::vector<std::string> parts;
  for (const SlotsOn& on : placement) parts.push_back(absl::StrCat(on.worker, ":", on.slots));
  return absl::StrJoin(parts, "+");
}

template <class Entity>
const Entity* Find(const std::vector<Entity>& entities, std::string_view name) {
  for (const Entity& entity : entities) {
    if (entity.name == name) return &entity;
  }
  return nullptr;
}

constexpr const char* kActions[] = {"preempt", "resize", "start"};
constexpr const char* kWaits[] = {"slots", "quota", "back-off", "never"};

}  // namespace

int SlotsOf(const Placement& placement) {
  int slots = 0;
  for (const SlotsOn& on : placement) slots += on.slots;
  return slots;
}

const Job& FindJob(const Snapshot& snapshot, std::string_view name) {
  const Job* job = Find(snapshot.jobs, name);
  if (job == nullptr) {
    std::fprintf(stderr, "no job %s\n", std::string(name).c_str());
    std::abort();
  }
  return *job;
}

Job& FindJob(Snapshot& snapshot, std::string_view name) {
  return const_cast<Job&>(FindJob(static_cast<const Snapshot&>(snapshot), name));
}

const Worker* FindWorker(const Snapshot& snapshot, std::string_view name) {
  return Find(snapshot.workers, name);
}

const Queue* FindQueue(const Snapshot& snapshot, std::string_view name) {
  return Find(snapshot.queues, name);
}

Snapshot Apply(Snapshot snapshot, const Decisions& decisions, int64_t now_ms) {
  for (const Decision& decision : decisions.actions) {
    Job& job = FindJob(snapshot, decision.job);
    switch (decision.action) {
      case Action::kStart:
        job.phase = JobPhase::kStarting;
        job.held = decision.placement;
        job.checkpoint_ms = job.resized_ms = now_ms;
        job.expected_end_ms = job.expected_ms > 0 ? now_ms + job.expected_ms : 0;
        break;
      case Action::kResize:
        job.phase = JobPhase::kResizing;
        job.next = decision.placement;
        job.resized_ms = now_ms;
        break;
      case Action::kPreempt:
        job.phase = JobPhase::kStopping;
        job.next.clear();
        break;
    }
  }
  return snapshot;
}

std::string ToText(const Decisions& decisions) {
  std::string text;
  for (const Decision& d : decisions.actions) {
    absl::StrAppend(&text, kActions[static_cast<int>(d.action)], " ", d.job);
    if (!d.placement.empty()) absl::StrAppend(&text, " on ", Words(d.placement));
    if (!d.waits_for.empty()) absl::StrAppend(&text, " after ", absl::StrJoin(d.waits_for, ","));
    if (!d.helps.empty()) absl::StrAppend(&text, " for ", d.helps);
    absl::StrAppend(&text, " by ", d.deadline_ms, ": ", d.reason, "\n");
  }
  for (const Waiting& w : decisions.waiting) {
    absl::StrAppend(&text, "wait ", w.job, " (", kWaits[static_cast<int>(w.kind)], ") behind '",
                    w.behind, "' due ", w.due_ms, " holding ", Words(w.reserved), ": ", w.reason,
                    "\n");
  }
  for (const Remark& r : decisions.remarks) absl::StrAppend(&text, r.job, ": ", r.reason, "\n");
  return text;
}

}  // namespace nibble::scheduler::testing
