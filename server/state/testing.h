// A cluster for tests: a state, its journal, a store of its entities and a clock that only the test
// moves. Every update is applied and its bytes are kept, and its entities are written to the store,
// as in the coordinator.
//
// Ownership: owns all of these. Thread-safety: none.
#ifndef NIBBLE_SERVER_STATE_TESTING_H_
#define NIBBLE_SERVER_STATE_TESTING_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

class TestCluster {
 public:
  TestCluster();  // named "test"

  const State& state() const { return state_; }
  const std::vector<std::string>& journal() const { return journal_; }
  const std::map<std::pair<int, std::string>, std::string>& store() const { return store_; }
  Caller caller() const {
    return {.author = author, .now_unix_ms = now_ms, .is_worker = is_worker};
  }

  std::string author = "ann";
  bool is_worker = false;
  int64_t now_ms = 1'000'000;
  LiveProgress live;

  // Decides, applies, and returns the answer.
  template <class Response, class Request>
  absl::StatusOr<Response> Do(const Request& request) {
    NIBBLE_ASSIGN_OR_RETURN(Decision<Response> decision, DecideOne(request));
    if (decision.update) {
      NIBBLE_RETURN_IF_ERROR(Apply(*decision.update));
    }
    return decision.response;
  }
  absl::Status Run(MaybeUpdate update);
  absl::Status Apply(const v1::Update& update);
  // One fact as an update of its own.
  template <class Fill>
  v1::Update Facts(Fill fill) const {
    v1::Update update;
    update.set_sequence(state_.sequence() + 1);
    update.set_time_unix_ms(now_ms);
    update.set_author(author);
    fill(*update.add_facts());
    return update;
  }

  // A new request id.
  std::string Id() { return absl::StrCat("request-", ++requests_); }
  // 1000 steps of 16 sequences; the learning rate decays in the last 200.
  static std::string Spec(const std::string& name, int ranks);

  // w1, w2, …
  void AddWorkers(int count, int slots);
  absl::Status Register(const std::string& name, int64_t incarnation, int slots);
  // Returns its id; the test fails if it is refused.
  std::string Submit(int ranks = 4, const std::string& name = "train");
  const v1::JobRecord& Job(const std::string& id) const { return *state_.FindJob(id); }
  v1::JobState StateOf(const std::string& id) const { return Job(id).state(); }

  // Launches an attempt on the first workers that have room, from the newest loadable checkpoint.
  absl::Status Launch(const std::string& job);
  absl::Status Report(const std::string& job, const std::string& worker, v1::RankPhase phase,
                      int64_t step = 0, int64_t attempt = 0, const std::string& detail = "",
                      v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED);
  // Reports from every worker of the current attempt.
  absl::Status ReportAll(const std::string& job, v1::RankPhase phase, int64_t step = 0);
  // Reports one shard; attempt 0 is the current one.
  absl::Status Shard(const std::string& job, int64_t step, int32_t rank, int64_t attempt = 0);
  // Reports every shard.
  absl::Status Checkpoint(const std::string& job, int64_t step);
  // Launches an attempt and reports that every rank runs.
  absl::Status Start(const std::string& job);

 private:
  template <class Request>
  auto DecideOne(const Request& request) {
    if constexpr (requires { Decide(state_, request, caller(), live); }) {
      return Decide(state_, request, caller(), live);
    } else {
      return Decide(state_, request, caller());
    }
  }

  State state_;
  std::vector<std::string> journal_;
  std::map<std::pair<int, std::string>, std::string> store_;
  int requests_ = 0;
};

// The state that replays a journal, and the one that a store contains.
absl::StatusOr<State> Replay(const std::vector<std::string>& journal, size_t length);
absl::StatusOr<State> Load(const std::map<std::pair<int, std::string>, std::string>& store);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_TESTING_H_
