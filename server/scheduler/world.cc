#include "server/scheduler/world.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace nibble::scheduler {
namespace {

bool ByNode(const NodeSlots& a, const NodeSlots& b) { return a.node < b.node; }

void InsertOnce(std::vector<int>& ascending, int value) {
  const auto at = std::lower_bound(ascending.begin(), ascending.end(), value);
  if (at == ascending.end() || *at != value) ascending.insert(at, value);
}

int Total(const Placement& placement) {
  int64_t total = 0;
  for (const SlotsOn& on : placement) total += on.slots;
  return static_cast<int>(total);
}

}  // namespace

Ledger::Ledger(const std::vector<Queue>& queues) {
  for (const Queue& queue : queues) accounts_.push_back({.queue = &queue});
  std::sort(accounts_.begin(), accounts_.end(),
            [](const Account& a, const Account& b) { return a.queue->name < b.queue->name; });
  absl::flat_hash_map<std::string_view, int> cohorts;
  for (size_t i = 0; i < accounts_.size(); ++i) {
    Account& account = accounts_[i];
    by_name_.emplace(account.queue->name, static_cast<int>(i));
    if (account.queue->cohort.empty() || account.queue->quota == kUnlimited) continue;
    const auto [at, added] =
        cohorts.try_emplace(account.queue->cohort, static_cast<int>(cohorts_.size()));
    if (added) cohorts_.push_back({.name = account.queue->cohort});
    account.cohort = at->second;
    cohorts_[at->second].total += account.queue->quota;
  }
  for (Account& account : accounts_) {
    account.limit = account.queue->quota;
    if (account.cohort < 0) continue;
    account.limit = cohorts_[account.cohort].total;
    if (account.queue->borrow_limit == kUnlimited) continue;
    account.limit = std::min(account.limit, account.queue->quota + account.queue->borrow_limit);
  }
}

int Ledger::Find(std::string_view queue) const {
  const auto at = by_name_.find(queue);
  return at == by_name_.end() ? -1 : at->second;
}

void Ledger::BeginPass() {
  for (Account& account : accounts_) {
    account.claimed = account.deferred = 0;
    account.claimant = account.waiting = -1;
  }
  for (Cohort& cohort : cohorts_) {
    cohort.claimed = 0;
    cohort.waiting = -1;
  }
}

void Ledger::Use(int queue, int64_t slots) {
  accounts_[queue].used += slots;
  if (accounts_[queue].cohort >= 0) cohorts_[accounts_[queue].cohort].used += slots;
}

void Ledger::Claim(int queue, int64_t slots, int job) {
  if (accounts_[queue].claimant < 0) accounts_[queue].claimant = job;
  accounts_[queue].claimed += slots;
  if (accounts_[queue].cohort >= 0) cohorts_[accounts_[queue].cohort].claimed += slots;
}

void Ledger::EndFirstRound() {
  for (Account& account : accounts_) account.deferred = 0;
}

void Ledger::WaitForQueue(int queue, int job) {
  if (accounts_[queue].waiting < 0) accounts_[queue].waiting = job;
}

void Ledger::WaitForCohort(int queue, int job) {
  Cohort& cohort = cohorts_[accounts_[queue].cohort];
  if (cohort.waiting < 0) cohort.waiting = job;
}

bool Ledger::Owns(int queue, int64_t ahead, int64_t slots) const {
  const Account& account = accounts_[queue];
  return HasQuota(queue) &&
         ahead + account.claimed + account.deferred + slots <= account.queue->quota;
}

int64_t Ledger::OverQueue(int queue, int64_t slots) const {
  const Account& account = accounts_[queue];
  if (!HasQuota(queue)) return 0;
  return std::max<int64_t>(0, account.used + account.claimed + slots - account.limit);
}

int64_t Ledger::OverCohort(int queue, int64_t slots) const {
  const Cohort* shared = cohort(queue);
  if (shared == nullptr) return 0;
  return std::max<int64_t>(0, shared->used + shared->claimed + slots - shared->total);
}

int64_t Ledger::RoomToGrow(int queue) const {
  const Account& account = accounts_[queue];
  if (!HasQuota(queue)) return std::numeric_limits<int32_t>::max();
  if (account.waiting >= 0) return 0;
  int64_t room = account.limit - account.used - account.claimed;
  if (const Cohort* shared = cohort(queue)) {
    if (shared->waiting >= 0) return 0;
    room = std::min(room, shared->total - shared->used - shared->claimed);
  }
  return std::max<int64_t>(room, 0);
}

World::World(const Snapshot& snapshot, int64_t now_ms, const Policy& policy)
    : now_ms_(now_ms),
      policy_(policy),
      cluster_(snapshot.workers),
      ledger_(snapshot.queues),
      eligible_(cluster_),
      idle_(cluster_),
      open_(cluster_),
      ample_(cluster_),
      promised_(cluster_.nodes().size(), 0),
      soon_(cluster_.nodes().size(), 0),
      soon_open_(cluster_.nodes().size(), 0),
      soon_open_by_kind_(cluster_.kinds().size(), 0),
      lend_until_(cluster_.kinds().size(), kNever),
      waiting_for_(cluster_.kinds().size(), -1),
      claimed_by_(cluster_.kinds().size(), -1) {
  std::vector<const Job*> line;
  line.reserve(snapshot.jobs.size());
  for (const Job& job : snapshot.jobs) line.push_back(&job);
  std::sort(line.begin(), line.end(), [](const Job* a, const Job* b) {
    return std::tie(b->priority, a->submitted, a->name) <
           std::tie(a->priority, b->submitted, b->name);
  });
  // By node: slots that are or will be occupied.
  std::vector<int> occupied(soon_.size(), 0);
  jobs_.reserve(line.size());
  for (const Job* job : line) AddJob(*job, occupied);
  for (size_t n = 0; n < soon_.size(); ++n) {
    const int capacity = cluster_.nodes()[n].capacity;
    const int idle = std::max(0, capacity - occupied[n]);
    soon_[n] = std::max(0, capacity - promised_[n]) - idle;
    idle_.Set(static_cast<int>(n), idle);
    if (soon_[n] > 0) soon_nodes_.push_back(static_cast<int>(n));
    touched_.push_back(static_cast<int>(n));
  }
}

void World::AddJob(const Job& job, std::vector<int>& occupied) {
  const int index = static_cast<int>(jobs_.size());
  JobState state{.job = &job, .queue = ledger_.Find(job.queue), .phase = job.phase};
  state.labels = eligible_.IdOf(job);
  for (const std::string& worker : job.excluded_workers) {
    const int node = cluster_.FindNode(worker);
    if (node >= 0) InsertOnce(state.excluded, node);
  }
  const NodePlacement held = Resolve(job.held);
  if (IsActive(job.phase)) {
    const bool resizing = job.phase == JobPhase::kResizing;
    state.active = resizing ? Resolve(job.next) : held;
    state.size = Total(resizing ? job.next : job.held);
    state.end_ms = job.expected_end_ms;
    if (state.queue >= 0) ledger_.Use(state.queue, state.size);
    int known = 0;
    for (const NodeSlots& on : state.active) {
      if (cluster_.nodes()[on.node].worker->state != WorkerState::kLost) known += on.count;
      promised_[on.node] += on.count;
      occupied[on.node] += on.count;
    }
    state.stranded = known != state.size;
  }
  // The slots it occupies beyond those promised to it.
  for (const NodeSlots& on : held) {
    const auto kept = std::lower_bound(state.active.begin(), state.active.end(), on, ByNode);
    const int stays = kept != state.active.end() && kept->node == on.node ? kept->count : 0;
    if (on.count <= stays) continue;
    occupied[on.node] += on.count - stays;
    leaving_[on.node].push_back(index);
  }
  jobs_.push_back(std::move(state));
}

NodePlacement World::Resolve(const Placement& placement) const {
  NodePlacement nodes;
  nodes.reserve(placement.size());
  for (const SlotsOn& on : placement) {
    const int node = cluster_.FindNode(on.worker);
    if (node >= 0) nodes.push_back({node, on.slots});
  }
  std::sort(nodes.begin(), nodes.end(), ByNode);
  return nodes;
}

std::vector<int> World::Line() const {
  std::vector<int> line;
  line.reserve(jobs_.size());
  for (size_t begin = 0, end = 0; begin < jobs_.size(); begin = end) {
    const int priority = jobs_[begin].job->priority;
    while (end < jobs_.size() && jobs_[end].job->priority == priority) ++end;
    for (const bool queued : {false, true}) {
      for (size_t j = begin; j < end; ++j) {
        if ((jobs_[j].phase == JobPhase::kQueued) == queued) line.push_back(static_cast<int>(j));
      }
    }
  }
  return line;
}

bool World::Excludes(int job, int node) const {
  const std::vector<int>& excluded = jobs_[job].excluded;
  return std::binary_search(excluded.begin(), excluded.end(), node);
}

int64_t World::SoonOpenOn(const EligibleKinds& kinds) const {
  int64_t soon = 0;
  for (const EligibleKind& kind : kinds) soon += soon_open_by_kind_[kind.kind];
  return soon;
}

void World::WaitFor(const EligibleKinds& kinds, int job) {
  for (const EligibleKind& kind : kinds) {
    if (waiting_for_[kind.kind] < 0) waiting_for_[kind.kind] = job;
  }
}

void World::BeginPass() {
  ledger_.BeginPass();
  for (int node : touched_) {
    soon_open_by_kind_[cluster_.nodes()[node].kind] += soon_[node] - soon_open_[node];
    soon_open_[node] = soon_[node];
    open_.Set(node, idle_.free(node));
    ample_.Set(node, idle_.free(node) + soon_[node]);
  }
  touched_.clear();
  std::fill(lend_until_.begin(), lend_until_.end(), kNever);
  std::fill(waiting_for_.begin(), waiting_for_.end(), -1);
  std::fill(claimed_by_.begin(), claimed_by_.end(), -1);
}

void World::ClaimOpen(int job, const NodePlacement& placement, int64_t due_ms) {
  for (const NodeSlots& on : placement) {
    SetOpen(on.node, open_.free(on.node) - on.count);
    const int kind = cluster_.nodes()[on.node].kind;
    lend_until_[kind] = std::min(lend_until_[kind], due_ms);
    if (claimed_by_[kind] < 0) claimed_by_[kind] = job;
  }
}

void World::ClaimSoon(int job, int node, int slots) {
  TakeSoon(node, slots);
  int& claimed_by = claimed_by_[cluster_.nodes()[node].kind];
  if (claimed_by < 0) claimed_by = job;
}

void World::SetOpen(int node, int slots) {
  touched_.push_back(node);
  open_.Set(node, slots);
  ample_.Set(node, slots + soon_open_[node]);
}

void World::TakeSoon(int node, int slots) {
  touched_.push_back(node);
  soon_open_[node] -= slots;
  ample_.Set(node, open_.free(node) + soon_open_[node]);
  soon_open_by_kind_[cluster_.nodes()[node].kind] -= slots;
}

void World::Promise(int job, const NodePlacement& slots) {
  JobState& state = jobs_[job];
  for (const NodeSlots& on : slots) {
    touched_.push_back(on.node);
    const int now = std::min(on.count, idle_.free(on.node));
    const int later = on.count - now;
    const int from_open = std::min(on.count, open_.free(on.node));
    idle_.Set(on.node, idle_.free(on.node) - now);
    soon_[on.node] -= later;
    promised_[on.node] += on.count;
    // Slots of a worker are interchangeable: those taken beyond the open ones are either soon open
    // or borrowed. Neither may exceed what remains.
    SetOpen(on.node, std::min(open_.free(on.node) - from_open, idle_.free(on.node)));
    const int soon_left = std::max(0, soon_open_[on.node] - (on.count - from_open));
    TakeSoon(on.node, soon_open_[on.node] - std::min(soon_left, soon_[on.node]));
    if (later > 0) {
      for (int other : leaving_[on.node]) {
        if (other != job) InsertOnce(state.waits_for, other);
      }
    }
    const auto at = std::lower_bound(state.active.begin(), state.active.end(), on, ByNode);
    if (at != state.active.end() && at->node == on.node) {
      at->count += on.count;
    } else {
      state.active.insert(at, on);
    }
    state.size += on.count;
    if (state.queue >= 0) ledger_.Use(state.queue, on.count);
  }
}

void World::Leave(int job, const NodePlacement& slots) {
  JobState& state = jobs_[job];
  for (const NodeSlots& on : slots) {
    const auto at = std::lower_bound(state.active.begin(), state.active.end(), on, ByNode);
    at->count -= on.count;
    if (at->count == 0) state.active.erase(at);
    state.size -= on.count;
    if (state.queue >= 0) ledger_.Use(state.queue, -on.count);
    touched_.push_back(on.node);
    InsertOnce(leaving_[on.node], job);
    promised_[on.node] -= on.count;
    // A worker may have fewer slots than its jobs hold; then freeing returns fewer.
    const int capacity = cluster_.nodes()[on.node].capacity;
    const int soon = std::max(0, capacity - promised_[on.node]) - idle_.free(on.node);
    if (soon <= soon_[on.node]) continue;
    TakeSoon(on.node, soon_[on.node] - soon);
    soon_[on.node] = soon;
    InsertOnce(soon_nodes_, on.node);
  }
}

Standing FindStanding(const World& world) {
  const std::vector<JobState>& jobs = world.jobs();
  Standing standing{.ahead = std::vector<int64_t>(jobs.size(), 0),
                    .owns = std::vector<bool>(jobs.size(), false),
                    .owned = std::vector<int64_t>(world.ledger().size(), 0)};
  std::vector<int64_t>& owned = standing.owned;
  for (int j : world.Line()) {
    const int queue = jobs[j].queue;
    if (queue < 0) continue;
    standing.ahead[j] = owned[queue];
    if (!IsActive(jobs[j].phase) || !world.ledger().HasQuota(queue)) continue;
    if (owned[queue] + jobs[j].size > world.ledger().account(queue).queue->quota) continue;
    owned[queue] += jobs[j].size;
    standing.owns[j] = true;
  }
  return standing;
}

}  // namespace nibble::scheduler
