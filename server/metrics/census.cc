#include "server/metrics/census.h"

#include <algorithm>
#include <cstddef>

namespace nibble {
namespace {

// Of a table that is loaded so many entities are measured, evenly spread.
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

}  // namespace

int32_t Census::QueueIndex(const std::string& name) {
  const auto found = std::find(queue_names_.begin(), queue_names_.end(), name);
  if (found != queue_names_.end()) return static_cast<int32_t>(found - queue_names_.begin());
  queue_names_.push_back(name);
  return static_cast<int32_t>(queue_names_.size()) - 1;
}

std::optional<Census::Wait> Census::MarkJob(const std::string& id, const v1::JobRecord* job,
                                            int64_t now_ms) {
  JobMark before;
  if (const auto known = job_marks_.find(id); known != job_marks_.end()) {
    before = known->second;
    Shift(jobs_, {before.queue, before.state}, -1);
    slots_used_ -= before.slots;
    if (job == nullptr) job_marks_.erase(known);
  }
  if (job == nullptr) return std::nullopt;
  JobMark now{.queue = QueueIndex(job->scheduling().queue()), .state = job->state()};
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
                entities_[kind] = static_cast<int64_t>(table.size());
              });
}

void Census::Begin(const State& state, int64_t now_ms) {
  const std::lock_guard<std::mutex> lock(mutex_);
  job_marks_.clear();
  worker_marks_.clear();
  jobs_.clear();
  workers_.clear();
  sizes_.clear();
  slots_ = slots_used_ = 0;
  for (const auto& [id, job] : state.tables().jobs) (void)MarkJob(id, job.get(), now_ms);
  for (const auto& [name, worker] : state.tables().workers) MarkWorker(name, worker.get());
  CountEntities(state);
  VisitTables(state.tables(), state.tables(),
              [this](v1::EntityKind kind, const auto& table, const auto&) {
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
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [kind, key] : changed) {
    VisitTables(after.tables(), after.tables(),
                [this, kind = kind, &key = key](v1::EntityKind at, const auto& table, const auto&) {
                  if (at != kind) return;
                  const auto found = table.find(key);
                  if (found == table.end()) return;
                  Measure(kind, static_cast<int64_t>(found->second->ByteSizeLong()));
                });
    if (kind == v1::ENTITY_KIND_JOB) {
      if (auto wait = MarkJob(key, after.FindJob(key), now_ms)) waits.push_back(*std::move(wait));
    } else if (kind == v1::ENTITY_KIND_WORKER) {
      MarkWorker(key, after.FindWorker(key));
    }
  }
  CountEntities(after);
  return waits;
}

Census::Counts Census::Now() const {
  Counts counts;
  const std::lock_guard<std::mutex> lock(mutex_);
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
  return counts;
}

}  // namespace nibble
