#include "server/controller/worker_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/controller/log.h"
#include "server/state/entities.h"

namespace nibble {

absl::Status WorkerSession::NoteReport(const v1::WorkerIdentity& identity, int64_t now_ms) {
  MutexLock lock(&mutex_);
  heard_ms_ = now_ms;
  if (worker_.empty() || (worker_ == identity.name() && incarnation_ == identity.incarnation())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("identity: the stream belongs to ", worker_, " (incarnation ", incarnation_,
                   "), the report to ", identity.name(), " (incarnation ", identity.incarnation(),
                   "); open a stream for each"));
}

bool WorkerSession::SetWorker(const v1::WorkerIdentity& identity) {
  MutexLock lock(&mutex_);
  const bool first = worker_.empty();
  worker_ = identity.name();
  incarnation_ = identity.incarnation();
  return first;
}

std::string WorkerSession::worker() const {
  MutexLock lock(&mutex_);
  return worker_;
}

int64_t WorkerSession::heard_ms() const {
  MutexLock lock(&mutex_);
  return heard_ms_;
}

void WorkerSession::NoteDurable(int64_t number) {
  MutexLock lock(&mutex_);
  answered_ = std::max(answered_, number);
}

void WorkerSession::NoteShards(const v1::ConnectRequest& report) {
  MutexLock lock(&mutex_);
  std::erase_if(drop_orders_,
                [&](const auto& order) { return order.second <= report.desired_number(); });
  if (report.all_shards()) shards_.clear();
  for (const v1::ShardReport& shard : report.shards()) {
    std::string key = ShardKey(shard.ref(), shard.rank());
    if (!report.all_shards() && shards_.size() >= most_shards_ && !shards_.contains(key)) continue;
    shards_[std::move(key)] = shard;
  }
}

void WorkerSession::NoteDamaged(const std::string& shard_key) {
  MutexLock lock(&mutex_);
  damaged_.insert(shard_key);
}

void WorkerSession::NoteDropOrder(const std::string& shard_key, int64_t number) {
  MutexLock lock(&mutex_);
  drop_orders_[shard_key] = number;
}

bool WorkerSession::IsStale(const std::string& shard_key, int64_t acknowledged) const {
  MutexLock lock(&mutex_);
  if (damaged_.contains(shard_key)) return true;
  const auto order = drop_orders_.find(shard_key);
  return order != drop_orders_.end() && acknowledged < order->second;
}

std::set<std::string> WorkerSession::damaged() const {
  MutexLock lock(&mutex_);
  return damaged_;
}

void WorkerSession::TakeDamaged(const std::set<std::string>& shard_keys) {
  MutexLock lock(&mutex_);
  for (const std::string& key : shard_keys) damaged_.erase(key);
}

namespace {

std::string CopyOrder(const v1::CheckpointRef& ref, int32_t rank) {
  return absl::StrCat("copy ", ShardKey(ref, rank));
}
// Of all tasks of the checkpoint, and of one.
std::string TasksOrder(const v1::CheckpointRef& ref) {
  return absl::StrCat("tasks ", CheckpointKey(ref));
}
std::string TaskOrder(const v1::CheckpointRef& ref, int64_t task) {
  return absl::StrCat("task ", task, " ", CheckpointKey(ref));
}

}  // namespace

void WorkerSession::NoteOrders(const v1::ConnectResponse& desired) {
  MutexLock lock(&mutex_);
  const int64_t number = desired.number();
  for (const v1::DesiredReplica& replica : desired.replicas()) {
    orders_[CopyOrder(replica.ref(), replica.rank())] = number;
  }
  for (const v1::DesiredTask& task : desired.tasks()) {
    orders_[TasksOrder(task.ref())] = number;
    orders_[TaskOrder(task.ref(), task.task())] = number;
  }
  std::erase_if(orders_, [&](const auto& order) { return order.second < number - kOrderMemory; });
}

bool WorkerSession::WasOrdered(const std::string& order) const {
  MutexLock lock(&mutex_);
  return orders_.contains(order);
}

bool WorkerSession::WasOrderedCopy(const v1::CheckpointRef& ref, int32_t rank) const {
  return WasOrdered(CopyOrder(ref, rank));
}

bool WorkerSession::WasOrderedTask(const v1::CheckpointRef& ref, int64_t task) const {
  return WasOrdered(TaskOrder(ref, task));
}

bool WorkerSession::WasOrderedTask(const v1::CheckpointRef& ref) const {
  return WasOrdered(TasksOrder(ref));
}

bool WorkerSession::BeforeOrders() const {
  MutexLock lock(&mutex_);
  return number_ == 0;
}

void WorkerSession::Refuse(const std::string& subject, const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (refusals_.size() >= kMaxRefusals) refusals_.clear();
    if (!refusals_.insert(std::string(why.message())).second) return;
  }
  Log(LogLevel::kWarning, absl::StrCat("refused a claim: ", why.message()));
  if (refused_) refused_(subject, why);
}

WorkerSession::Snapshot WorkerSession::BeginDesired() {
  MutexLock lock(&mutex_);
  Snapshot snapshot = {.worker = worker_,
                       .incarnation = incarnation_,
                       .number = ++number_,
                       .answered = answered_,
                       .shards = {}};
  for (const auto& [key, shard] : shards_) snapshot.shards.push_back(shard);
  return snapshot;
}

WorkerSessions::WorkerSessions(const Clock& clock, const Options& options, OrphanRegistry& orphans,
                               TrashRegistry& trash)
    : clock_(clock), options_(options), orphans_(orphans), trash_(trash), thread_([this] {
        Serve();
      }) {}

absl::StatusOr<WorkerSessions::Session> WorkerSessions::Open(WorkerSession::Notify notify,
                                                             WorkerSession::End end,
                                                             WorkerSession::Refused refused) {
  auto session = std::make_shared<WorkerSession>(std::move(notify), std::move(end),
                                                 std::move(refused), clock_.SteadyMs());
  MutexLock lock(&mutex_);
  if (sessions_.size() >= options_.most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("workers: ", sessions_.size(), " are connected; allowed: ", options_.most));
  }
  sessions_.insert(session);
  return session;
}

void WorkerSessions::Close(const Session& session) {
  MutexLock lock(&mutex_);
  if (sessions_.erase(session) == 0) return;
  to_notify_.erase(session);
  const std::string worker = session->worker();
  const auto [begin, end] = by_worker_.equal_range(worker);
  const auto found =
      std::find_if(begin, end, [&](const auto& entry) { return entry.second == session; });
  if (found == end) return;
  by_worker_.erase(found);
  if (by_worker_.contains(worker)) return;
  orphans_.Forget(worker);
  trash_.Forget(worker);
}

void WorkerSessions::SetWorker(const Session& session, const v1::WorkerIdentity& identity) {
  MutexLock lock(&mutex_);
  if (session->SetWorker(identity) && sessions_.contains(session)) {
    by_worker_.emplace(identity.name(), session);
  }
}

std::vector<WorkerSessions::Session> WorkerSessions::Of(const std::string& worker) const {
  MutexLock lock(&mutex_);
  std::vector<Session> sessions;
  const auto [begin, end] = by_worker_.equal_range(worker);
  for (auto at = begin; at != end; ++at) sessions.push_back(at->second);
  return sessions;
}

size_t WorkerSessions::count() const {
  MutexLock lock(&mutex_);
  return sessions_.size();
}

bool WorkerSessions::IsOpen(const Session& session) const {
  MutexLock lock(&mutex_);
  return sessions_.contains(session);
}

void WorkerSessions::EndSilent(int64_t now_ms) {
  std::vector<std::pair<Session, absl::Status>> silent;
  {
    MutexLock lock(&mutex_);
    // Reports only postpone the expiry of sessions, and new sessions expire later: as with leases.
    if (now_ms < none_silent_before_ms_) return;
    none_silent_before_ms_ = now_ms + options_.lease_ms;
    for (const Session& session : sessions_) {
      const int64_t heard_ms = session->heard_ms();
      const int64_t silent_ms = now_ms - heard_ms;
      none_silent_before_ms_ = std::min(none_silent_before_ms_, heard_ms + options_.lease_ms + 1);
      if (silent_ms <= options_.lease_ms) continue;
      const std::string worker = session->worker();
      silent.emplace_back(
          session, absl::DeadlineExceededError(absl::StrCat(
                       worker.empty() ? "a stream that never reported" : worker, ": no report for ",
                       silent_ms, " ms; the lease is ", options_.lease_ms, " ms")));
    }
  }
  for (const auto& [session, why] : silent) session->CallEnd(why);
}

void WorkerSessions::PostponeEnds(int64_t until_ms) {
  MutexLock lock(&mutex_);
  none_silent_before_ms_ = std::max(none_silent_before_ms_, until_ms);
}

void WorkerSessions::Notify(const std::set<std::string>& workers) {
  {
    MutexLock lock(&mutex_);
    for (const std::string& worker : workers) {
      const auto [begin, end] = by_worker_.equal_range(worker);
      for (auto at = begin; at != end; ++at) to_notify_.insert(at->second);
    }
    if (to_notify_.empty()) return;
  }
  changed_.SignalAll();
}

void WorkerSessions::Serve() {
  mutex_.Lock();
  while (true) {
    while (to_notify_.empty() && !stopping_) changed_.Wait(&mutex_);
    if (stopping_) break;
    // Set by set, so that none is notified twice while another one waits.
    std::set<Session> sessions = std::exchange(to_notify_, {});
    notifying_ = true;
    mutex_.Unlock();
    for (const Session& session : sessions) {
      if (IsOpen(session)) session->CallNotify();
    }
    sessions.clear();
    mutex_.Lock();
    notifying_ = false;
    changed_.SignalAll();
  }
  mutex_.Unlock();
}

void WorkerSessions::Settle() {
  MutexLock lock(&mutex_);
  while ((notifying_ || !to_notify_.empty()) && !stopping_) changed_.Wait(&mutex_);
}

void WorkerSessions::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

}  // namespace nibble
