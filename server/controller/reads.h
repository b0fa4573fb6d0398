// Answers to requests that change nothing: pure functions of the shown state, the live facts and
// the request. Statuses: see proto/nibble/v1/coordinator.proto.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_READS_H_
#define NIBBLE_SERVER_CONTROLLER_READS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/common.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "server/controller/live_status.h"
#include "server/controller/project_view.h"
#include "server/controller/trash_registry.h"
#include "server/state/state.h"

namespace nibble {

inline constexpr int32_t kDefaultPage = 100;
inline constexpr int32_t kMaxPage = 1000;

struct ReadContext {
  const State& state;
  const LiveStatus& live;
  int64_t now_ms = 0;
  const OrphanRegistry* orphans = nullptr;  // may be null for requests not about orphans
  ProjectView view = ProjectView();         // of the caller: which jobs lists have
  const TrashRegistry* trash = nullptr;     // null: workers have none
};

// Lists are sorted by a text, and a page token names the last entry of its page: entries that come
// or go between two calls do not disturb the others.
struct Page {
  int32_t size = kDefaultPage;
  std::string after;  // empty: from the start
};

// `list` begins the tokens of a list. A size above kMaxPage is lowered to it. InvalidArgument: the
// size is negative, or the token is not one of this list.
absl::StatusOr<Page> ReadPage(const v1::PageRequest& request, const std::string& list);
std::string PageToken(const std::string& list, const std::string& last);

v1::Job JobNow(const ReadContext& context, const v1::JobRecord& job);
v1::Worker WorkerNow(const ReadContext& context, const v1::WorkerRecord& worker);

// reads.cc
absl::StatusOr<v1::ListJobsResponse> Answer(const ReadContext& context,
                                            const v1::ListJobsRequest& request);
absl::StatusOr<v1::DescribeJobResponse> Answer(const ReadContext& context,
                                               const v1::DescribeJobRequest& request);
absl::StatusOr<v1::ListJobEventsResponse> Answer(const ReadContext& context,
                                                 const v1::ListJobEventsRequest& request);
absl::StatusOr<v1::GetJobMetricsResponse> Answer(const ReadContext& context,
                                                 const v1::GetJobMetricsRequest& request);
absl::StatusOr<v1::ListCheckpointsResponse> Answer(const ReadContext& context,
                                                   const v1::ListCheckpointsRequest& request);
absl::StatusOr<v1::DescribeCheckpointResponse> Answer(const ReadContext& context,
                                                      const v1::DescribeCheckpointRequest& request);
absl::StatusOr<v1::ListOrphansResponse> Answer(const ReadContext& context,
                                               const v1::ListOrphansRequest& request);
absl::StatusOr<v1::ListWorkersResponse> Answer(const ReadContext& context,
                                               const v1::ListWorkersRequest& request);
absl::StatusOr<v1::DescribeWorkerResponse> Answer(const ReadContext& context,
                                                  const v1::DescribeWorkerRequest& request);
absl::StatusOr<v1::ListQueuesResponse> Answer(const ReadContext& context,
                                              const v1::ListQueuesRequest& request);

// deletion_reads.cc
absl::StatusOr<v1::ListTrashResponse> Answer(const ReadContext& context,
                                             const v1::ListTrashRequest& request);
absl::StatusOr<v1::ListDeletionsResponse> Answer(const ReadContext& context,
                                                 const v1::ListDeletionsRequest& request);

// recipe_reads.cc
absl::StatusOr<v1::GetRecipeResponse> Answer(const ReadContext& context,
                                             const v1::GetRecipeRequest& request);
absl::StatusOr<v1::DiffRecipeResponse> Answer(const ReadContext& context,
                                              const v1::DiffRecipeRequest& request);
absl::StatusOr<v1::ListRecipeRevisionsResponse> Answer(
    const ReadContext& context, const v1::ListRecipeRevisionsRequest& request);
absl::StatusOr<v1::ListRecipePresetsResponse> Answer(const ReadContext& context,
                                                     const v1::ListRecipePresetsRequest& request);
absl::StatusOr<v1::GetRecipeCostResponse> Answer(const ReadContext& context,
                                                 const v1::GetRecipeCostRequest& request);

// Which ranks' log lines are requested.
struct LogQuery {
  std::string job;        // id
  int64_t attempt = 0;    // number; 0: the latest
  bool or_later = false;  // the first existing one from this number on
  int32_t rank = -1;      // -1: all
};

// A rank and the worker that has its log lines.
struct LogSource {
  int32_t rank = 0;
  std::string worker;
  std::string address;  // host:port; empty: the worker was forgotten
};

struct LogAttempt {
  int64_t number = 0;
  bool over = false;               // it has ended
  bool job_finished = false;       // no further attempt follows
  std::vector<LogSource> sources;  // by rank
};

// InvalidArgument: rank or attempt is out of bounds. NotFound: the job or attempt does not exist or
// is no longer kept.
absl::StatusOr<LogAttempt> Answer(const ReadContext& context, const LogQuery& query);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_READS_H_
