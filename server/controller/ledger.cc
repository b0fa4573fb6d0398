#include "server/controller/ledger.h"

#include <future>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/log.h"

namespace nibble {
namespace {

// The store requires keys of at least one byte; the state has entities with empty keys.
constexpr char kKeyMark = '/';

std::string StoreKind(v1::EntityKind kind) { return v1::EntityKind_Name(kind); }

absl::StatusOr<State> Load(const Store& store) {
  StateLoader loader;
  NIBBLE_RETURN_IF_ERROR(store.ReadEntities("", [&loader](const StoredEntity& entity) {
    v1::EntityKind kind = v1::ENTITY_KIND_UNSPECIFIED;
    if (!v1::EntityKind_Parse(std::string(entity.kind), &kind) || entity.key.empty() ||
        entity.key[0] != kKeyMark) {
      return absl::DataLossError(absl::StrCat("store: '", entity.kind, "' with the key '",
                                              entity.key, "' is no entity of the coordinator"));
    }
    return loader.Add(kind, entity.key.substr(1), entity.value);
  }));
  NIBBLE_ASSIGN_OR_RETURN(State state, loader.Finish());
  const auto last = static_cast<int64_t>(store.Info().last_sequence);
  if (state.sequence() != last) {
    return absl::DataLossError(absl::StrCat("store: its entities are of update ", state.sequence(),
                                            ", its journal ends with ", last));
  }
  return state;
}

absl::Status Unavailable(const absl::Status& cause) {
  return absl::UnavailableError(absl::StrCat(
      "the coordinator takes no changes because its store has stopped: ", cause.message(),
      "; repeat the request under its request id"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(Store& store) {
  NIBBLE_ASSIGN_OR_RETURN(State state, Load(store));
  return std::unique_ptr<Ledger>(
      new Ledger(store, std::make_shared<const State>(std::move(state))));
}

Ledger::Ledger(Store& store, std::shared_ptr<const State> state)
    : store_(store), decided_(state), durable_(state->sequence()), shown_(std::move(state)) {}

Ledger::~Ledger() { Close(); }

absl::Status Ledger::Append(v1::Update update) {
  auto after = std::make_shared<State>(*decided_);
  NIBBLE_ASSIGN_OR_RETURN(auto changes, after->Apply(update));
  const int64_t sequence = update.sequence();
  StoreBatch batch;
  batch.record = update.SerializeAsString();
  const auto under_way = std::make_shared<UnderWay>(UnderWay{std::move(update), {}, after});
  for (EntityChange& change : changes) {
    under_way->changed.emplace_back(change.kind, change.key);
    batch.changes.push_back(
        {StoreKind(change.kind), kKeyMark + change.key, std::move(change.value)});
  }
  const absl::StatusOr<uint64_t> appended = store_.Append(
      std::move(batch),
      [this, under_way](const absl::Status& status) { HandleStored(*under_way, status); });
  if (!appended.ok()) {
    if (appended.status().code() == absl::StatusCode::kInvalidArgument) return appended.status();
    return absl::UnavailableError(appended.status().message());
  }
  ++under_way_;
  if (static_cast<int64_t>(*appended) != sequence) {
    health_ = absl::InternalError(
        absl::StrCat("update ", sequence, " became the store's batch ", *appended));
    return health_;
  }
  decided_ = std::move(after);
  return absl::OkStatus();
}

void Ledger::Change(Deciding decide, Then then) {
  absl::Status status;
  bool waits_for_stop = false;
  {
    MutexLock lock(&mutex_);
    if (health_.ok() && closed_) {
      status = absl::UnavailableError("the coordinator is stopping");
    } else if (health_.ok()) {
      MaybeUpdate update = decide(*decided_);
      status = update.status();
      if (update.ok() && update->has_value()) status = Append(**std::move(update));
      if (health_.ok()) health_ = store_.Health();
      if (health_.ok() && decided_->sequence() > durable_) {
        waiting_[decided_->sequence()].emplace_back(status, std::move(then));
        return;
      }
    }
    if (!health_.ok()) {
      status = Unavailable(health_);
      waits_for_stop = !stop_reported_;
      if (waits_for_stop) waiting_[decided_->sequence()].emplace_back(status, std::move(then));
    }
  }
  if (waits_for_stop) {
    Stop(status);
  } else {
    std::move(then)(status);
  }
}

absl::Status Ledger::ChangeAndWait(Deciding decide) {
  auto answer = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> answered = answer->get_future();
  Change(decide, [answer](const absl::Status& status) { answer->set_value(status); });
  return answered.get();
}

void Ledger::ChangeUnawaited(Deciding decide, const std::string& what) {
  Change(decide, [what](const absl::Status& status) {
    if (!status.ok()) Log(LogLevel::kWarning, absl::StrCat(what, ": ", status.ToString()));
  });
}

void Ledger::HandleStored(const UnderWay& under_way, const absl::Status& status) {
  std::vector<std::pair<absl::Status, Then>> answers;
  if (status.ok()) {
    {
      std::shared_ptr<const State> after = under_way.after;
      MutexLock lock(&shown_mutex_);
      shown_.swap(after);
    }
    if (hooks_.applied) {
      hooks_.applied(Applied{under_way.after, under_way.update, under_way.changed});
    }
    MutexLock lock(&mutex_);
    durable_ = under_way.update.sequence();
    while (!waiting_.empty() && waiting_.begin()->first <= durable_) {
      auto& ready = waiting_.begin()->second;
      std::move(ready.begin(), ready.end(), std::back_inserter(answers));
      waiting_.erase(waiting_.begin());
    }
  } else {
    Stop(status);
  }
  for (auto& [answer, then] : answers) std::move(then)(answer);
  MutexLock lock(&mutex_);
  --under_way_;
  // Under the lock: a waiting thread may destroy this as soon as it is released.
  idle_.SignalAll();
}

void Ledger::Stop(const absl::Status& status) {
  absl::Status why;
  {
    MutexLock lock(&mutex_);
    if (health_.ok()) health_ = status;
    // Otherwise another thread reports the stop, and then answers all waiting changes.
    if (std::exchange(stopping_, true)) return;
    why = health_;
  }
  Log(LogLevel::kError, absl::StrCat("the store has stopped: ", why.ToString()));
  if (hooks_.stopped) hooks_.stopped(why);
  Waiting waiting;
  {
    MutexLock lock(&mutex_);
    stop_reported_ = true;
    waiting.swap(waiting_);
  }
  for (auto& [sequence, answers] : waiting) {
    for (auto& [answer, then] : answers) std::move(then)(Unavailable(why));
  }
}

absl::Status Ledger::Health() const {
  MutexLock lock(&mutex_);
  return health_;
}

void Ledger::WaitUntilIdle() {
  while (under_way_ > 0) idle_.Wait(&mutex_);
}

void Ledger::Settle() {
  MutexLock lock(&mutex_);
  WaitUntilIdle();
}

void Ledger::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  WaitUntilIdle();
}

}  // namespace nibble
