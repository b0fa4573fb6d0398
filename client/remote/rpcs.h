// The unary calls of nibble.v1.Coordinator, typed without gRPC's generated code.
//
// Thread-safety: constants.
#ifndef NIBBLE_CLIENT_REMOTE_RPCS_H_
#define NIBBLE_CLIENT_REMOTE_RPCS_H_

#include "proto/nibble/v1/coordinator.pb.h"

namespace nibble {

// A unary method of the service, or the path of one of another service. coordinator_client_test
// checks each one against the service's descriptor.
template <class Request, class Response>
struct Rpc {
  const char* method;
};

#define NIBBLE_RPC(Verb) \
  inline constexpr Rpc<v1::Verb##Request, v1::Verb##Response> k##Verb { #Verb }
NIBBLE_RPC(SubmitJob);
NIBBLE_RPC(ForkJob);
NIBBLE_RPC(ListJobs);
NIBBLE_RPC(DescribeJob);
NIBBLE_RPC(ListJobEvents);
NIBBLE_RPC(PauseJob);
NIBBLE_RPC(ResumeJob);
NIBBLE_RPC(CheckpointJob);
NIBBLE_RPC(CancelJob);
NIBBLE_RPC(KillJob);
NIBBLE_RPC(WaitJob);
NIBBLE_RPC(SetJobPriority);
NIBBLE_RPC(SetJobRestartPolicy);
NIBBLE_RPC(GetJobMetrics);
NIBBLE_RPC(GetRecipe);
NIBBLE_RPC(SetRecipe);
NIBBLE_RPC(RollbackRecipe);
NIBBLE_RPC(DiffRecipe);
NIBBLE_RPC(ListRecipeRevisions);
NIBBLE_RPC(ListRecipePresets);
NIBBLE_RPC(GetRecipeCost);
NIBBLE_RPC(ListCheckpoints);
NIBBLE_RPC(DescribeCheckpoint);
NIBBLE_RPC(VerifyCheckpoint);
NIBBLE_RPC(ExportCheckpoint);
NIBBLE_RPC(PinCheckpoint);
NIBBLE_RPC(UnpinCheckpoint);
NIBBLE_RPC(DeleteCheckpoint);
NIBBLE_RPC(ListTrash);
NIBBLE_RPC(RestoreCheckpoint);
NIBBLE_RPC(ListDeletions);
NIBBLE_RPC(ListOrphans);
NIBBLE_RPC(AdoptJob);
NIBBLE_RPC(RemoveOrphan);
NIBBLE_RPC(ListWorkers);
NIBBLE_RPC(DescribeWorker);
NIBBLE_RPC(DrainWorker);
NIBBLE_RPC(UncordonWorker);
NIBBLE_RPC(ListQueues);
NIBBLE_RPC(SetQueue);
NIBBLE_RPC(DeleteQueue);
#undef NIBBLE_RPC

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_RPCS_H_
