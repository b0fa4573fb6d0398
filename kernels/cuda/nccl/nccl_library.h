// NCCL, loaded when ranks on cards are first connected, so that programs that also run on machines
// without it need no second build.
//
// Ownership: the library stays loaded until the process ends. Thread-safety: LoadNccl may be called
// from any thread; the table is immutable.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_NCCL_LIBRARY_H_
#define NIBBLE_KERNELS_CUDA_NCCL_NCCL_LIBRARY_H_

#include <nccl.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

// The functions that a group calls, by the library's names without its prefix.
struct NcclLibrary {
  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclGroupStart) GroupStart;
  decltype(&ncclGroupEnd) GroupEnd;
  decltype(&ncclSend) Send;
  decltype(&ncclRecv) Recv;
  decltype(&ncclAllGather) AllGather;
  decltype(&ncclReduceScatter) ReduceScatter;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclBroadcast) Broadcast;
};

// Where libnccl.so.2 is searched: the linker's own search (LD_LIBRARY_PATH), then CUDA_HOME and
// /usr/local/cuda.
std::vector<std::string> NcclPlaces();
// NotFound naming libnccl.so.2 and every place searched; FailedPrecondition naming a function that
// the library lacks.
absl::StatusOr<const NcclLibrary*> LoadNcclFrom(const std::vector<std::string>& places);
// From NcclPlaces(), once per process.
absl::StatusOr<const NcclLibrary*> LoadNccl();

// "2.28.9", of the number that ncclGetVersion gives.
std::string NcclVersionText(int version);

// OK for success and for ncclInProgress. Otherwise the call, NCCL's name of the error and
// `detail`: Unavailable for a peer that is gone, InvalidArgument for invalid arguments and use,
// else Internal.
absl::Status NcclStatus(const NcclLibrary& library, ncclResult_t result, absl::string_view call,
                        absl::string_view detail = "");

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_NCCL_LIBRARY_H_
