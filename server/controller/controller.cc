#include "server/controller/controller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/log.h"

namespace nibble {
namespace {

// The job of an event or checkpoint: the part of its key before the first '/'.
std::string JobOf(const std::string& key) { return key.substr(0, key.find('/')); }

// The changes of one update, sorted by who needs them.
struct Changed {
  std::set<std::string> jobs;
  std::set<std::string> checkpoints_of;
  std::set<std::string> care_for;  // jobs changed themselves, or in a checkpoint or shard
  bool workers = false;
  std::vector<std::string> events;  // keys
};

Changed Sort(const std::vector<std::pair<v1::EntityKind, std::string>>& changed) {
  Changed sorted;
  for (const auto& [kind, key] : changed) {
    if (kind == v1::ENTITY_KIND_JOB || kind == v1::ENTITY_KIND_CHECKPOINT ||
        kind == v1::ENTITY_KIND_SHARD) {
      sorted.care_for.insert(JobOf(key));
    }
    sorted.workers |= kind == v1::ENTITY_KIND_WORKER;
    if (kind == v1::ENTITY_KIND_JOB || kind == v1::ENTITY_KIND_TIMELINE) {
      sorted.jobs.insert(key);
    } else if (kind == v1::ENTITY_KIND_EVENT) {
      sorted.events.push_back(key);
      sorted.jobs.insert(JobOf(key));
    } else if (kind == v1::ENTITY_KIND_CHECKPOINT) {
      sorted.checkpoints_of.insert(JobOf(key));
    }
  }
  return sorted;
}

void AddWorkersOf(const v1::Attempt& attempt, std::set<std::string>& workers) {
  for (const v1::Placement& placement : attempt.placements()) workers.insert(placement.worker());
}

}  // namespace

Controller::Controller(const Clock& clock, ControllerOptions options)
    : clock_(clock),
      options_(std::move(options)),
      live_(options_.lease_ms),
      hub_(options_.watches),
      care_(options_.copies) {}

Controller::~Controller() {
  if (ledger_ == nullptr) return;
  ledger_->Close();
  StopWaiting();
}

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(
    Store& store, const Clock& clock, ControllerOptions options,
    std::function<void(const absl::Status&)> stopped) {
  std::unique_ptr<Controller> controller(new Controller(clock, std::move(options)));
  Controller* const self = controller.get();
  const Stopwatch loading;
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<Ledger> ledger,
      Ledger::Open(
          store,
          {.applied = [self](const Ledger::Applied& applied) { return self->Applied(applied); },
           .stopped = std::move(stopped)}));
  controller->store_ = &store;
  controller->ledger_ = std::move(ledger);
  controller->opened_sequence_ =
      controller->ledger_->Read([](const State& state) { return state.sequence(); });
  NIBBLE_RETURN_IF_ERROR(controller->ledger_->ChangeAndWait([&](const State& state) {
    return DecideStart(state, self->options_.cluster, self->options_.fresh_store_id,
                       self->options_.restored, self->CoordinatorNow());
  }));
  controller->ledger_->Read([&](const State& state) {
    self->live_.Restart(state, clock.SteadyMs());
    self->metrics_.Begin(state, clock.SteadyMs());
    self->hub_.SetStore(state.store());
    self->hub_.Publish(state.sequence(), {});
    std::lock_guard lock(self->mutex_);
    for (const auto& [number, id] : state.index().unfinished()) {
      self->to_trim_.insert(id);
      self->moments_.Note(state, *state.FindJob(id), clock.SteadyMs());
    }
  });
  controller->metrics_.Recovered("state", loading.seconds());
  return controller;
}

Controller::Connected Controller::CountConnected() const {
  const WatchHub::Counts open = hub_.Count();
  std::lock_guard lock(mutex_);
  return {sessions_.size(), open.watches, open.waits};
}

void Controller::ChangeAlone(absl::FunctionRef<MaybeUpdate(const State&)> decide,
                             const std::string& what) {
  ledger_->Change(decide, [what](const absl::Status& status) {
    if (!status.ok()) Log(LogLevel::kWarning, absl::StrCat(what, ": ", status.ToString()));
  });
}

void Controller::NoteEpoch(const v1::Update& update) {
  for (const v1::Fact& fact : update.facts()) {
    if (!fact.has_store_restored()) continue;
    v1::StoreIdentity store;
    store.set_id(fact.store_restored().store_id());
    store.set_epoch(fact.store_restored().epoch());
    hub_.SetStore(store);
    if (store.epoch() == 1) continue;
    restored_ms_ = std::max<int64_t>(1, clock_.SteadyMs());
    Log(LogLevel::kWarning,
        absl::StrCat("the store was restored: epoch ", fact.store_restored().epoch(), " begins (",
                     fact.store_restored().reason(), "); workers are asked what they know better"));
  }
}

std::function<void()> Controller::Applied(const Ledger::Applied& applied) {
  const State& state = *applied.state;
  const int64_t now_ms = clock_.SteadyMs();
  metrics_.Applied(state, applied.update, applied.changed, now_ms);
  const Changed changed = Sort(applied.changed);
  std::vector<WatchLog::Entry> news;
  for (const std::string& key : changed.events) {
    const v1::JobEvent* const event = FindIn(state.tables().events, key);
    if (event == nullptr || !hub_.IsWatched(event->job())) continue;
    news.emplace_back().job = event->job();
    *news.back().message.mutable_event() = *event;
  }
  std::set<std::string> affected;
  std::vector<std::pair<std::string, v1::JobState>> moved;
  std::vector<SwitchAnswers::Answer> answers;
  for (const std::string& id : changed.jobs) {
    for (SwitchAnswers::Answer& answer : switches_.TakeSettled(state, id)) {
      answers.push_back(std::move(answer));
    }
    const v1::JobRecord* const job = state.FindJob(id);
    if (job == nullptr) {
      live_.Forget(id);
      moments_.Forget(id);
      continue;
    }
    moved.emplace_back(id, job->state());
    moments_.Note(state, *job, now_ms);
    if (job->has_attempt()) AddWorkersOf(job->attempt(), affected);
    if (job->recent_attempts_size() > 0) AddWorkersOf(*job->recent_attempts().rbegin(), affected);
    if (!hub_.IsWatched(id)) continue;
    news.emplace_back().job = id;
    *news.back().message.mutable_job() = JobNow({state, live_, now_ms}, *job);
  }
  const int64_t sequence = applied.update.sequence();
  NoteEpoch(applied.update);
  hub_.Publish(sequence, std::move(news));
  std::vector<std::function<void()>> notify;
  {
    std::lock_guard lock(mutex_);
    to_trim_.insert(changed.checkpoints_of.begin(), changed.checkpoints_of.end());
    to_care_for_.insert(changed.care_for.begin(), changed.care_for.end());
    workers_changed_ |= changed.workers;
    for (const std::string& worker : affected) AddNotify(worker, notify);
  }
  return
      [this, notify = std::move(notify), moved = std::move(moved), answers = std::move(answers)] {
        for (const SwitchAnswers::Answer& answer : answers) answer();
        for (const auto& [job, now] : moved) hub_.Moved(job, now);
        for (const auto& call : notify) {
          if (call) call();
        }
      };
}

void Controller::Tick() {
  std::lock_guard lock(tick_mutex_);
  if (!ledger_->Health().ok()) return;
  if (!store_->CheckPlace().ok()) {
    // An empty change: the ledger notices that its store has stopped and reports it.
    ChangeAlone([](const State&) -> MaybeUpdate { return std::nullopt; }, "look at the store");
    return;
  }
  const int64_t now_ms = clock_.SteadyMs();
  EndLeases(now_ms);
  EndSilentSessions(now_ms);
  hub_.CutStalled(now_ms);
  for (const SwitchAnswers::Answer& answer : switches_.TakeDue(now_ms)) answer();
  EndStops(now_ms);
  PlanSlots(now_ms);
  CareForCheckpoints();
  TrimHistory();
}

void Controller::TrimHistory() {
  ChangeAlone([this](const State& state) { return DecideForget(state, CoordinatorNow()); },
              "forgetting of finished jobs");
  const StoreInfo info = store_->Info();
  const auto kept = static_cast<uint64_t>(options_.journal_updates);
  // In large pieces: each trim is a write of its own.
  if (info.last_sequence < info.first_sequence + kept + kept / 10) return;
  const absl::Status status = store_->TrimJournal(info.last_sequence - kept);
  if (!status.ok()) Log(LogLevel::kWarning, absl::StrCat("journal: ", status.ToString()));
}

}  // namespace nibble
