// The unary calls of nibble.v1.Coordinator, typed without gRPC's generated code.
//
// Thread-safety: constants.
#ifndef NIBBLE_CLIENT_REMOTE_RPCS_H_
#define NIBBLE_CLIENT_REMOTE_RPCS_H_

#include "proto/nibble/v1/coordinator.pb.h"

namespace nibble {

// A unary method of the service. coordinator_client_test checks each one against the service's
// descriptor.
template <class Request, class Response>
struct Rpc {
  const char* method;
};

inline constexpr Rpc<v1::SubmitJobRequest, v1::SubmitJobResponse> kSubmitJob{"SubmitJob"};
inline constexpr Rpc<v1::ForkJobRequest, v1::ForkJobResponse> kForkJob{"ForkJob"};
inline constexpr Rpc<v1::ListJobsRequest, v1::ListJobsResponse> kListJobs{"ListJobs"};
inline constexpr Rpc<v1::DescribeJobRequest, v1::DescribeJobResponse> kDescribeJob{"DescribeJob"};
inline constexpr Rpc<v1::ListJobEventsRequest, v1::ListJobEventsResponse> kListJobEvents{
    "ListJobEvents"};
inline constexpr Rpc<v1::PauseJobRequest, v1::PauseJobResponse> kPauseJob{"PauseJob"};
inline constexpr Rpc<v1::ResumeJobRequest, v1::ResumeJobResponse> kResumeJob{"ResumeJob"};
inline constexpr Rpc<v1::CheckpointJobRequest, v1::CheckpointJobResponse> kCheckpointJob{
    "CheckpointJob"};
inline constexpr Rpc<v1::CancelJobRequest, v1::CancelJobResponse> kCancelJob{"CancelJob"};
inline constexpr Rpc<v1::KillJobRequest, v1::KillJobResponse> kKillJob{"KillJob"};
inline constexpr Rpc<v1::WaitJobRequest, v1::WaitJobResponse> kWaitJob{"WaitJob"};
inline constexpr Rpc<v1::SetJobPriorityRequest, v1::SetJobPriorityResponse> kSetJobPriority{
    "SetJobPriority"};
inline constexpr Rpc<v1::SetJobRestartPolicyRequest, v1::SetJobRestartPolicyResponse>
    kSetJobRestartPolicy{"SetJobRestartPolicy"};
inline constexpr Rpc<v1::GetJobMetricsRequest, v1::GetJobMetricsResponse> kGetJobMetrics{
    "GetJobMetrics"};
inline constexpr Rpc<v1::GetRecipeRequest, v1::GetRecipeResponse> kGetRecipe{"GetRecipe"};
inline constexpr Rpc<v1::SetRecipeRequest, v1::SetRecipeResponse> kSetRecipe{"SetRecipe"};
inline constexpr Rpc<v1::RollbackRecipeRequest, v1::RollbackRecipeResponse> kRollbackRecipe{
    "RollbackRecipe"};
inline constexpr Rpc<v1::DiffRecipeRequest, v1::DiffRecipeResponse> kDiffRecipe{"DiffRecipe"};
inline constexpr Rpc<v1::ListRecipeRevisionsRequest, v1::ListRecipeRevisionsResponse>
    kListRecipeRevisions{"ListRecipeRevisions"};
inline constexpr Rpc<v1::ListRecipePresetsRequest, v1::ListRecipePresetsResponse>
    kListRecipePresets{"ListRecipePresets"};
inline constexpr Rpc<v1::GetRecipeCostRequest, v1::GetRecipeCostResponse> kGetRecipeCost{
    "GetRecipeCost"};
inline constexpr Rpc<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse> kListCheckpoints{
    "ListCheckpoints"};
inline constexpr Rpc<v1::DescribeCheckpointRequest, v1::DescribeCheckpointResponse>
    kDescribeCheckpoint{"DescribeCheckpoint"};
inline constexpr Rpc<v1::VerifyCheckpointRequest, v1::VerifyCheckpointResponse> kVerifyCheckpoint{
    "VerifyCheckpoint"};
inline constexpr Rpc<v1::ExportCheckpointRequest, v1::ExportCheckpointResponse> kExportCheckpoint{
    "ExportCheckpoint"};
inline constexpr Rpc<v1::PinCheckpointRequest, v1::PinCheckpointResponse> kPinCheckpoint{
    "PinCheckpoint"};
inline constexpr Rpc<v1::UnpinCheckpointRequest, v1::UnpinCheckpointResponse> kUnpinCheckpoint{
    "UnpinCheckpoint"};
inline constexpr Rpc<v1::DeleteCheckpointRequest, v1::DeleteCheckpointResponse> kDeleteCheckpoint{
    "DeleteCheckpoint"};
inline constexpr Rpc<v1::ListOrphansRequest, v1::ListOrphansResponse> kListOrphans{"ListOrphans"};
inline constexpr Rpc<v1::AdoptJobRequest, v1::AdoptJobResponse> kAdoptJob{"AdoptJob"};
inline constexpr Rpc<v1::RemoveOrphanRequest, v1::RemoveOrphanResponse> kRemoveOrphan{
    "RemoveOrphan"};
inline constexpr Rpc<v1::ListWorkersRequest, v1::ListWorkersResponse> kListWorkers{"ListWorkers"};
inline constexpr Rpc<v1::DescribeWorkerRequest, v1::DescribeWorkerResponse> kDescribeWorker{
    "DescribeWorker"};
inline constexpr Rpc<v1::DrainWorkerRequest, v1::DrainWorkerResponse> kDrainWorker{"DrainWorker"};
inline constexpr Rpc<v1::UncordonWorkerRequest, v1::UncordonWorkerResponse> kUncordonWorker{
    "UncordonWorker"};
inline constexpr Rpc<v1::ListQueuesRequest, v1::ListQueuesResponse> kListQueues{"ListQueues"};
inline constexpr Rpc<v1::SetQueueRequest, v1::SetQueueResponse> kSetQueue{"SetQueue"};
inline constexpr Rpc<v1::DeleteQueueRequest, v1::DeleteQueueResponse> kDeleteQueue{"DeleteQueue"};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RPCS_H_
