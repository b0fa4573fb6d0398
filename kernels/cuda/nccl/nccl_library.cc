#include "kernels/cuda/nccl/nccl_library.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/shared_library.h"

namespace nibble {
namespace {

constexpr char kNcclFile[] = "libnccl.so.2";

}  // namespace

std::vector<std::string> NcclPlaces() { return CudaLibraryPlaces(kNcclFile); }

absl::StatusOr<const NcclLibrary*> LoadNcclFrom(const std::vector<std::string>& places) {
  void* const library = LoadFirstOf(places);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "NCCL was not found: no ", kNcclFile, " (searched ", absl::StrJoin(places, ", "),
        "); install NCCL ", NCCL_MAJOR, ", or set LD_LIBRARY_PATH or CUDA_HOME to where it is"));
  }
  auto table = std::make_unique<NcclLibrary>();
  std::string missing;
  FindFunction(library, "ncclGetVersion", table->GetVersion, missing);
  FindFunction(library, "ncclGetUniqueId", table->GetUniqueId, missing);
  FindFunction(library, "ncclGetErrorString", table->GetErrorString, missing);
  FindFunction(library, "ncclGetLastError", table->GetLastError, missing);
  FindFunction(library, "ncclCommInitRankConfig", table->CommInitRankConfig, missing);
  FindFunction(library, "ncclCommGetAsyncError", table->CommGetAsyncError, missing);
  FindFunction(library, "ncclCommAbort", table->CommAbort, missing);
  FindFunction(library, "ncclGroupStart", table->GroupStart, missing);
  FindFunction(library, "ncclGroupEnd", table->GroupEnd, missing);
  FindFunction(library, "ncclSend", table->Send, missing);
  FindFunction(library, "ncclRecv", table->Recv, missing);
  FindFunction(library, "ncclAllGather", table->AllGather, missing);
  FindFunction(library, "ncclReduceScatter", table->ReduceScatter, missing);
  FindFunction(library, "ncclAllReduce", table->AllReduce, missing);
  FindFunction(library, "ncclBroadcast", table->Broadcast, missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(kNcclFile, " has no ", missing));
  }
  return table.release();
}

absl::StatusOr<const NcclLibrary*> LoadNccl() {
  static const absl::StatusOr<const NcclLibrary*>* const loaded =
      new absl::StatusOr<const NcclLibrary*>(LoadNcclFrom(NcclPlaces()));
  return *loaded;
}

std::string NcclVersionText(int version) {
  // Until 2.8 the number had one digit less for the minor version.
  const int unit = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / unit, ".", version % unit / 100, ".", version % 100);
}

absl::Status NcclStatus(const NcclLibrary& library, ncclResult_t result, absl::string_view call,
                        absl::string_view detail) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  std::string text = absl::StrCat(call, ": NCCL: ", library.GetErrorString(result));
  if (!detail.empty()) absl::StrAppend(&text, ": ", detail);
  switch (result) {
    case ncclRemoteError:
      return absl::UnavailableError(text);
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InvalidArgumentError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace nibble
