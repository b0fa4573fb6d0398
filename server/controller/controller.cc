#include "server/controller/controller.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/log.h"
#include "server/state/decide.h"

namespace nibble {
namespace {

// The job of an event or checkpoint: the part of its key before the first '/'.
std::string JobOf(const std::string& key) { return key.substr(0, key.find('/')); }

// The changes of one update, sorted by the parts that need them.
struct Changed {
  std::set<std::string> jobs;       // changed themselves, in their timeline, or by an event
  std::vector<std::string> events;  // keys
  CheckpointKeeper::Changes checkpoints;
};

Changed Sort(const std::vector<std::pair<v1::EntityKind, std::string>>& changed) {
  Changed sorted;
  for (const auto& [kind, key] : changed) {
    switch (kind) {
      case v1::ENTITY_KIND_JOB:
        sorted.jobs.insert(key);
        sorted.checkpoints.jobs.insert(key);
        break;
      case v1::ENTITY_KIND_TIMELINE:
        sorted.jobs.insert(key);
        break;
      case v1::ENTITY_KIND_EVENT:
        sorted.events.push_back(key);
        sorted.jobs.insert(JobOf(key));
        break;
      case v1::ENTITY_KIND_CHECKPOINT:
        sorted.checkpoints.checkpoints_of.insert(JobOf(key));
        sorted.checkpoints.jobs.insert(JobOf(key));
        break;
      case v1::ENTITY_KIND_SHARD:
        sorted.checkpoints.jobs.insert(JobOf(key));
        break;
      case v1::ENTITY_KIND_WORKER:
        sorted.checkpoints.workers = true;
        break;
      default:
        break;
    }
  }
  return sorted;
}

void AddWorkersOf(const v1::Attempt& attempt, std::set<std::string>& workers) {
  for (const v1::Placement& placement : attempt.placements()) workers.insert(placement.worker());
}

}  // namespace

Controller::Controller(Store& store, const Clock& clock, ControllerOptions options,
                       std::unique_ptr<Ledger> ledger)
    : store_(store),
      clock_(clock),
      options_(std::move(options)),
      live_(options_.lease_ms),
      ledger_(std::move(ledger)),
      context_{options_, clock_, *ledger_, live_, moments_, orphans_, metrics_, trash_},
      requests_(context_),
      watches_(context_),
      sessions_(clock_, {.most = options_.max_sessions, .lease_ms = options_.lease_ms}, orphans_,
                trash_),
      recovery_(context_),
      keeper_(context_, sessions_),
      uploads_(context_),
      reports_(context_, sessions_, recovery_, keeper_, watches_),
      scheduling_(context_, recovery_) {}

Controller::~Controller() {
  ledger_->Close();
  StopWaiting();
  sessions_.Stop();
}

absl::StatusOr<std::unique_ptr<Controller>> Controller::Start(
    Store& store, const Clock& clock, ControllerOptions options,
    std::function<void(const absl::Status&)> stopped) {
  const Stopwatch loading;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Ledger> ledger, Ledger::Open(store));
  std::unique_ptr<Controller> controller(
      new Controller(store, clock, std::move(options), std::move(ledger)));
  controller->ledger_->SetHooks(
      {.applied = [self = controller.get()](const auto& applied) { self->HandleApplied(applied); },
       .stopped = std::move(stopped)});
  NIBBLE_RETURN_IF_ERROR(controller->Begin());
  controller->metrics_.Recovered("state", loading.seconds());
  return controller;
}

absl::Status Controller::Begin() {
  NIBBLE_RETURN_IF_ERROR(ledger_->ChangeAndWait([this](const State& state) {
    FreshIds fresh;
    if (options_.fresh_id) fresh = {.id = options_.fresh_id(), .key = options_.fresh_id()};
    return DecideStart(state, options_.cluster, fresh, options_.restored, context_.coordinator());
  }));
  if (const absl::Status replaced = Inspect([](const State& state) { return state.Replaced(); });
      !replaced.ok()) {
    Log(LogLevel::kError, replaced.message());
  }
  const int64_t now_ms = clock_.SteadyMs();
  Inspect([&](const State& state) {
    live_.Restart(state, now_ms);
    metrics_.Begin(state, now_ms);
    watches_.Begin(state);
    for (const auto& [number, id] : state.index().unfinished()) {
      moments_.Note(state, *state.FindJob(id), now_ms);
    }
  });
  return absl::OkStatus();
}

absl::Status Controller::Health() const {
  const absl::Status health = ledger_->Health();
  return health.ok() ? Inspect([](const State& state) { return state.Replaced(); }) : health;
}

Controller::Connected Controller::CountConnected() const {
  const WatchHub::Counts open = watches_.Count();
  return {sessions_.count(), open.watches, open.waits};
}

void Controller::HandleApplied(const Ledger::Applied& applied) {
  const State& state = *applied.state;
  const int64_t now_ms = clock_.SteadyMs();
  metrics_.Applied(state, applied.update, applied.changed, now_ms);
  if (const auto store = recovery_.NoteEpoch(applied.update)) watches_.SetStore(*store);
  const Changed changed = Sort(applied.changed);
  std::set<std::string> affected;  // workers whose desired state may differ
  for (const std::string& id : changed.jobs) {
    const v1::JobRecord* const job = state.FindJob(id);
    if (job == nullptr) {
      live_.Forget(id);
      moments_.Forget(id);
      continue;
    }
    moments_.Note(state, *job, now_ms);
    if (job->has_attempt()) AddWorkersOf(job->attempt(), affected);
    if (job->recent_attempts_size() > 0) AddWorkersOf(*job->recent_attempts().rbegin(), affected);
  }
  keeper_.NoteChanges(changed.checkpoints);
  uploads_.NoteChanges(changed.checkpoints);
  watches_.Publish(state, changed.events, changed.jobs);
  for (const std::string& id : changed.jobs) requests_.AnswerSettled(state, id);
  sessions_.Notify(affected);
}

void Controller::Tick() {
  if (ticking_.exchange(true)) return;
  const absl::Cleanup done = [this] { ticking_ = false; };
  if (!Health().ok()) return;
  if (!store_.CheckPlace().ok()) {
    // An empty change: the ledger notices that its store has stopped and reports it.
    ledger_->ChangeUnawaited([](const State&) -> MaybeUpdate { return std::nullopt; },
                             "check of the store's directory");
    return;
  }
  const int64_t now_ms = clock_.SteadyMs();
  reports_.EndLeases(now_ms);
  sessions_.EndSilent(now_ms);
  watches_.CutStalled(now_ms);
  requests_.AnswerDue(now_ms);
  scheduling_.Tick(now_ms);
  keeper_.Tick();
  uploads_.Tick();
  TrimHistory();
}

void Controller::NotePause(int64_t paused_ms) {
  if (paused_ms < options_.lease_ms / 2) return;
  Log(LogLevel::kWarning, absl::StrCat("this process did not run for ", paused_ms,
                                       " ms; no worker is lost for its silence meanwhile"));
  const int64_t until_ms = clock_.SteadyMs() + options_.lease_ms;
  live_.PostponeExpiries(until_ms);
  sessions_.PostponeEnds(until_ms);
}

void Controller::TrimHistory() {
  ledger_->ChangeUnawaited(
      [this](const State& state) { return DecideForget(state, context_.coordinator()); },
      "forgetting of finished jobs");
  const StoreInfo info = store_.Info();
  const auto kept = static_cast<uint64_t>(options_.journal_updates);
  // In large pieces: each trim is a write of its own.
  if (info.last_sequence < info.first_sequence + kept + kept / 10) return;
  const absl::Status status = store_.TrimJournal(info.last_sequence - kept);
  if (!status.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("trimming of the journal: ", status.ToString()));
  }
}

void Controller::Settle() {
  ledger_->Settle();
  watches_.Settle();
  sessions_.Settle();
}

}  // namespace nibble
