#include "server/controller/coordinator_metrics.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "job/job_spec.h"
#include "proto/nibble/v1/coordinator.pb.h"
#include "server/controller/coordinator_table.h"

namespace nibble {
namespace {

// Entities of each loaded table whose size is measured, evenly spread.
constexpr size_t kMeasured = 1000;

int32_t SlotsOf(const v1::Attempt& attempt) {
  int32_t slots = 0;
  for (const v1::Placement& placement : attempt.placements()) slots += placement.slots_size();
  return slots;
}

template <class Key>
void Shift(std::map<Key, int64_t>& counts, const Key& key, int64_t by) {
  int64_t& count = counts[key];
  count += by;
  if (count == 0) counts.erase(key);
}

const CoordinatorTable& Rows() { return CoordinatorRows(); }

// "queued" of JOB_STATE_QUEUED.
std::string Word(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

std::string OutcomeWord(v1::AttemptOutcome outcome) {
  return Word(v1::AttemptOutcome_Name(outcome), "ATTEMPT_OUTCOME_");
}

// The fact's field name in its .proto.
std::string FactName(const v1::Fact& fact) {
  const auto* const field = v1::Fact::descriptor()->FindFieldByNumber(fact.fact_case());
  return field == nullptr ? "none" : field->name();
}

absl::string_view ActionName(scheduler::Action action) {
  switch (action) {
    case scheduler::Action::kPreempt:
      return "preempt";
    case scheduler::Action::kResize:
      return "resize";
    case scheduler::Action::kStart:
      break;
  }
  return "start";
}

constexpr std::array<absl::string_view, 4> kWaitKinds = {"slots", "quota", "back_off", "never"};

absl::string_view WaitName(scheduler::WaitKind kind) {
  return kWaitKinds[static_cast<size_t>(kind)];
}

// Paths of the existing methods; a caller may send any other text.
const std::set<std::string, std::less<>>& Methods() {
  static const auto* const methods = [] {
    auto* const made = new std::set<std::string, std::less<>>;
    const auto* const pool = v1::Fact::descriptor()->file()->pool();
    for (const char* const name :
         {"nibble.v1.Coordinator", "nibble.v1.WorkerLink", "nibble.v1.Access"}) {
      const auto* const service = pool->FindServiceByName(name);
      for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
        made->insert(absl::StrCat("/", name, "/", service->method(i)->name()));
      }
    }
    made->insert("/grpc.health.v1.Health/Check");
    made->insert("/grpc.health.v1.Health/Watch");
    made->insert("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    made->insert("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
    return made;
  }();
  return *methods;
}

}  // namespace

int32_t Census::QueueIndex(const std::string& name) {
  const auto found = std::find(queue_names_.begin(), queue_names_.end(), name);
  if (found != queue_names_.end()) return static_cast<int32_t>(found - queue_names_.begin());
  queue_names_.push_back(name);
  return static_cast<int32_t>(queue_names_.size()) - 1;
}

int64_t UnsavedSince(const State& state, const v1::JobRecord& job) {
  const v1::Checkpoint* const newest = state.NewestGood(job.id());
  const int64_t saved = newest == nullptr ? 0 : newest->committed_unix_ms();
  for (const v1::Attempt& attempt : job.recent_attempts()) {
    if (attempt.running_unix_ms() > saved) return attempt.running_unix_ms();
  }
  return std::max(saved, job.attempt().running_unix_ms());
}

void Census::MarkUnsaved(const State& state, const v1::JobRecord& job, JobMark& mark) {
  mark.unsaved_since_ms.reset();
  if (job.state() != v1::JOB_STATE_RUNNING || job.attempt().running_unix_ms() == 0) return;
  if (!mark.saves.has_value()) {
    const v1::SpecRecord* const record = state.FindSpec(job.id());
    const auto spec = ParseJobSpec(record == nullptr ? "" : record->spec_yaml());
    mark.saves = spec.ok() && spec->checkpoints.every > 0;
  }
  if (*mark.saves) mark.unsaved_since_ms = UnsavedSince(state, job);
}

std::optional<Census::Wait> Census::MarkJob(const State& state, const std::string& id,
                                            int64_t now_ms) {
  const v1::JobRecord* const job = state.FindJob(id);
  JobMark before;
  if (const auto known = job_marks_.find(id); known != job_marks_.end()) {
    before = known->second;
    Shift(jobs_, {before.queue, before.state}, -1);
    slots_used_ -= before.slots;
    if (job == nullptr) job_marks_.erase(known);
  }
  if (job == nullptr) return std::nullopt;
  JobMark now{.queue = QueueIndex(job->scheduling().queue()), .state = job->state()};
  now.saves = before.saves;
  MarkUnsaved(state, *job, now);
  now.slots = SlotsOf(job->attempt());
  if (job->state() == v1::JOB_STATE_QUEUED) now.queued_ms = before.queued_ms.value_or(now_ms);
  job_marks_[id] = now;
  Shift(jobs_, {now.queue, now.state}, 1);
  slots_used_ += now.slots;
  if (!before.queued_ms || now.queued_ms || !job->has_attempt()) return std::nullopt;
  const int64_t waited_ms = now_ms - *before.queued_ms;
  return Wait{job->scheduling().queue(), static_cast<double>(waited_ms) / 1000};
}

void Census::MarkWorker(const std::string& name, const v1::WorkerRecord* worker) {
  if (const auto known = worker_marks_.find(name); known != worker_marks_.end()) {
    Shift(workers_, {known->second.present, known->second.mode}, -1);
    if (known->second.present) slots_ -= known->second.slots;
    worker_marks_.erase(known);
  }
  if (worker == nullptr) return;
  const WorkerMark now{worker->present(), worker->mode(), worker->identity().slots()};
  worker_marks_[name] = now;
  Shift(workers_, {now.present, now.mode}, 1);
  if (now.present) slots_ += now.slots;
}

void Census::Measure(v1::EntityKind kind, int64_t bytes) {
  Sizes& sizes = sizes_[kind];
  ++sizes.seen;
  sizes.bytes += static_cast<double>(bytes);
}

void Census::CountEntities(const State& state) {
  VisitTables(state.tables(), state.tables(),
              [this](v1::EntityKind kind, const auto& table, const auto&) {
                mutex_.AssertHeld();
                entities_[kind] = static_cast<int64_t>(table.size());
              });
}

void Census::Begin(const State& state, int64_t now_ms) {
  MutexLock lock(&mutex_);
  job_marks_.clear();
  worker_marks_.clear();
  jobs_.clear();
  workers_.clear();
  sizes_.clear();
  slots_ = slots_used_ = 0;
  for (const auto& [id, job] : state.tables().jobs) (void)MarkJob(state, id, now_ms);
  for (const auto& [name, worker] : state.tables().workers) MarkWorker(name, worker.get());
  CountEntities(state);
  VisitTables(state.tables(), state.tables(),
              [this](v1::EntityKind kind, const auto& table, const auto&) {
                mutex_.AssertHeld();
                const size_t stride = std::max<size_t>(1, table.size() / kMeasured);
                size_t i = 0;
                for (const auto& [key, entity] : table) {
                  if (i++ % stride == 0) {
                    Measure(kind, static_cast<int64_t>(entity->ByteSizeLong()));
                  }
                }
              });
}

std::vector<Census::Wait> Census::Update(const State& after, const Changed& changed,
                                         int64_t now_ms) {
  std::vector<Wait> waits;
  MutexLock lock(&mutex_);
  for (const auto& [kind, key] : changed) {
    VisitTables(after.tables(), after.tables(),
                [this, kind = kind, &key = key](v1::EntityKind at, const auto& table, const auto&) {
                  if (at != kind) return;
                  mutex_.AssertHeld();
                  const auto found = table.find(key);
                  if (found == table.end()) return;
                  Measure(kind, static_cast<int64_t>(found->second->ByteSizeLong()));
                });
    if (kind == v1::ENTITY_KIND_JOB) {
      if (auto wait = MarkJob(after, key, now_ms)) waits.push_back(*std::move(wait));
    } else if (kind == v1::ENTITY_KIND_CHECKPOINT) {
      // Found damaged, for example, which changes no job.
      const auto checkpoint = after.tables().checkpoints.find(key);
      if (checkpoint == after.tables().checkpoints.end()) continue;
      const v1::JobRecord* const job = after.FindJob(checkpoint->second->ref().job());
      const auto mark = job == nullptr ? job_marks_.end() : job_marks_.find(job->id());
      if (mark != job_marks_.end()) MarkUnsaved(after, *job, mark->second);
    } else if (kind == v1::ENTITY_KIND_WORKER) {
      MarkWorker(key, after.FindWorker(key));
    }
  }
  CountEntities(after);
  return waits;
}

Census::Counts Census::Now() const {
  Counts counts;
  MutexLock lock(&mutex_);
  for (const auto& [key, count] : jobs_) {
    counts.jobs[queue_names_[static_cast<size_t>(key.first)]][key.second] += count;
  }
  counts.workers = workers_;
  for (const auto& [kind, count] : entities_) {
    Entities& of = counts.entities[kind];
    of.count = count;
    const auto sizes = sizes_.find(kind);
    if (sizes != sizes_.end() && sizes->second.seen > 0) {
      of.mean_bytes = sizes->second.bytes / static_cast<double>(sizes->second.seen);
    }
  }
  counts.slots = slots_;
  counts.slots_used = slots_used_;
  for (const auto& [id, mark] : job_marks_) {
    if (mark.unsaved_since_ms) counts.unsaved_since_ms[id] = *mark.unsaved_since_ms;
  }
  return counts;
}

void CoordinatorMetrics::Recovered(absl::string_view part, double seconds) {
  book_.Set(Rows().recovery, {part}, seconds);
}

void CoordinatorMetrics::Applied(const State& after, const v1::Update& update,
                                 const Census::Changed& changed, int64_t now_ms) {
  for (const Census::Wait& wait : census_.Update(after, changed, now_ms)) {
    book_.Observe(Rows().queue_wait, {wait.queue}, wait.seconds);
  }
  for (const v1::Fact& fact : update.facts()) {
    book_.Add(Rows().facts, {FactName(fact)});
    switch (fact.fact_case()) {
      case v1::Fact::kAttemptLaunched: {
        const v1::JobRecord* const job = after.FindJob(fact.attempt_launched().job());
        if (job == nullptr || job->recent_attempts().empty()) break;
        book_.Add(Rows().restarts, {OutcomeWord(job->recent_attempts().rbegin()->outcome())});
        break;
      }
      case v1::Fact::kAttemptEnded:
        book_.Add(Rows().attempts_ended, {OutcomeWord(fact.attempt_ended().outcome())});
        break;
      case v1::Fact::kRecipeRevised:
        book_.Add(Rows().recipe_changes, {});
        break;
      case v1::Fact::kRevisionConfirmed:
        book_.Add(Rows().recipes_in_force, {});
        break;
      case v1::Fact::kShardStored:
        book_.Add(Rows().checkpoint_bytes, {}, static_cast<double>(fact.shard_stored().bytes()));
        break;
      case v1::Fact::kCheckpointCommitted:
        book_.Add(Rows().checkpoints, {"committed"});
        break;
      case v1::Fact::kCheckpointDamaged:
        book_.Add(Rows().checkpoints, {"damaged"});
        break;
      case v1::Fact::kCheckpointDeleted:
        book_.Add(Rows().checkpoints, {"deleted"});
        break;
      default:
        break;
    }
  }
}

void CoordinatorMetrics::Planned(double seconds, const scheduler::Decisions& decisions) {
  book_.Observe(Rows().plan_seconds, {}, seconds);
  for (const scheduler::Decision& decision : decisions.actions) {
    book_.Add(Rows().decisions, {ActionName(decision.action)});
  }
  std::map<absl::string_view, int64_t> waiting;
  for (const absl::string_view kind : kWaitKinds) waiting[kind] = 0;
  for (const scheduler::Waiting& job : decisions.waiting) ++waiting[WaitName(job.kind)];
  for (const auto& [kind, jobs] : waiting) {
    book_.Set(Rows().waiting, {kind}, static_cast<double>(jobs));
  }
}

void CoordinatorMetrics::CopiesMissing(int64_t copies) {
  book_.Set(Rows().copies_missing, {}, static_cast<double>(copies));
}

void CoordinatorMetrics::UploadsFailing(int64_t jobs) {
  book_.Set(Rows().uploads_failing, {}, static_cast<double>(jobs));
}

void CoordinatorMetrics::LeaseExpired() { book_.Add(Rows().lease_expiries, {}); }

void CoordinatorMetrics::Posted(absl::string_view result, int64_t events) {
  book_.Add(Rows().posts, {result}, static_cast<double>(events));
}

void CoordinatorMetrics::Audited(absl::string_view outcome) {
  book_.Add(Rows().audited, {outcome});
}

void CoordinatorMetrics::AuditLost() { book_.Add(Rows().audit_lost, {}); }

void CoordinatorMetrics::BackupsBegin(int64_t every_ms) {
  book_.Set(Rows().backup_interval, {}, static_cast<double>(every_ms) / 1000);
}

void CoordinatorMetrics::BackupFound(absl::Time begun, uint64_t bytes) {
  book_.Set(Rows().backup_time, {}, absl::ToDoubleSeconds(begun - absl::UnixEpoch()));
  book_.Set(Rows().backup_bytes, {}, static_cast<double>(bytes));
}

void CoordinatorMetrics::BackupMade(absl::Time begun, uint64_t bytes, double seconds) {
  BackupFound(begun, bytes);
  book_.Set(Rows().backup_seconds, {}, seconds);
  book_.Add(Rows().backups, {"made"});
}

void CoordinatorMetrics::BackupFailed() { book_.Add(Rows().backups, {"failed"}); }

void CoordinatorMetrics::Reported(double seconds, const absl::Status& status) {
  book_.Add(Rows().reports, {absl::StatusCodeToString(status.code())});
  book_.Observe(Rows().report_seconds, {}, seconds);
}

void CoordinatorMetrics::RpcEnded(absl::string_view method, absl::StatusCode code, bool stream,
                                  double seconds) {
  const bool known = Methods().contains(method);
  const absl::string_view name = known ? method.substr(method.rfind('/') + 1) : "other";
  book_.Add(Rows().rpcs, {name, absl::StatusCodeToString(code)});
  // Those may have waited for their turn (server/service/rate_limiter.h).
  const bool refused = code == absl::StatusCode::kResourceExhausted;
  if (known && !stream && !refused) book_.Observe(Rows().rpc_seconds, {name}, seconds);
}

void CoordinatorMetrics::Fill(MetricPage& page) const {
  const Census::Counts counts = census_.Now();
  for (const auto& [queue, states] : counts.jobs) {
    // Including states without jobs, so that a state that empties drops to 0.
    for (int state = v1::JOB_STATE_UNSPECIFIED + 1; state <= v1::JobState_MAX; ++state) {
      const auto found = states.find(static_cast<v1::JobState>(state));
      page.Set(Rows().jobs,
               {queue, Word(v1::JobState_Name(static_cast<v1::JobState>(state)), "JOB_STATE_")},
               found == states.end() ? 0 : static_cast<double>(found->second));
    }
  }
  for (const auto& [key, workers] : counts.workers) {
    page.Set(
        Rows().workers,
        {key.first ? "present" : "lost", Word(v1::WorkerMode_Name(key.second), "WORKER_MODE_")},
        static_cast<double>(workers));
  }
  for (const auto& [kind, entities] : counts.entities) {
    const std::string word = Word(v1::EntityKind_Name(kind), "ENTITY_KIND_");
    const auto count = static_cast<double>(entities.count);
    page.Set(Rows().entities, {word}, count);
    page.Set(Rows().entity_bytes, {word}, count * entities.mean_bytes);
  }
  for (const auto& [job, since_ms] : counts.unsaved_since_ms) {
    page.Set(Rows().checkpoint_time, {job}, static_cast<double>(since_ms) / 1000);
  }
  page.Set(Rows().slots, {}, static_cast<double>(counts.slots));
  page.Set(Rows().slots_used, {}, static_cast<double>(counts.slots_used));
}

void FillStore(const StoreMetrics& metrics, MetricPage& page) {
  page.Set(Rows().commits, {}, static_cast<double>(metrics.commits));
  page.Set(Rows().commits_failed, {}, static_cast<double>(metrics.failed));
  page.Set(Rows().commits_refused, {}, static_cast<double>(metrics.refused));
  page.Set(Rows().committed_bytes, {}, static_cast<double>(metrics.committed_bytes));
  page.Set(Rows().commits_waiting, {}, static_cast<double>(metrics.waiting));
  page.Set(Rows().waiting_bytes, {}, static_cast<double>(metrics.waiting_bytes));
  const StoreHistogram& batches = metrics.batches_per_write;
  page.SetHistogram(Rows().write_batches, {}, batches.bounds, batches.counts, batches.sum);
  const StoreHistogram& seconds = metrics.write_seconds;
  page.SetHistogram(Rows().write_seconds, {}, seconds.bounds, seconds.counts, seconds.sum);
}

const CoordinatorTable& CoordinatorRows() {
  static const auto* const rows = new CoordinatorTable;
  return *rows;
}

}  // namespace nibble
