// Answers to what people ask and that changes nothing: pure functions of the shown state, of what
// is known for the moment, and of the request. Statuses as proto/nibble/v1/coordinator.proto has
// them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_READS_H_
#define NIBBLE_SERVER_CONTROLLER_READS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "server/controller/live_facts.h"
#include "server/controller/orphan_book.h"
#include "server/state/state.h"

namespace nibble {

struct ReadContext {
  const State& state;
  const LiveFacts& live;
  int64_t now_ms = 0;
  const OrphanBook* orphans = nullptr;  // null: nothing of them is asked for
};

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

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_READS_H_
