#include "kernels/cuda/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

constexpr char kNcclFile[] = "libnccl.so.2";

// Keeps the first name that is not there.
template <class Function>
void FindIn(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
}

}  // namespace

std::vector<std::string> NcclPlaces() {
  std::vector<std::string> places = {kNcclFile};
  std::vector<std::string> homes = {"/usr/local/cuda"};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
    homes.insert(homes.begin(), home);
  }
  for (const std::string& home : homes) {
    for (const char* folder : {"targets/x86_64-linux/lib", "lib64", "lib"}) {
      places.push_back(absl::StrCat(home, "/", folder, "/", kNcclFile));
    }
  }
  return places;
}

absl::StatusOr<const NcclLibrary*> LoadNcclFrom(const std::vector<std::string>& places) {
  void* library = nullptr;
  for (const std::string& place : places) {
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "NCCL was not found: no ", kNcclFile, " (searched ", absl::StrJoin(places, ", "),
        "); install NCCL ", NCCL_MAJOR, ", or set LD_LIBRARY_PATH or CUDA_HOME to where it is"));
  }
  auto table = std::make_unique<NcclLibrary>();
  std::string missing;
  FindIn(library, "ncclGetVersion", table->GetVersion, missing);
  FindIn(library, "ncclGetUniqueId", table->GetUniqueId, missing);
  FindIn(library, "ncclGetErrorString", table->GetErrorString, missing);
  FindIn(library, "ncclGetLastError", table->GetLastError, missing);
  FindIn(library, "ncclCommInitRankConfig", table->CommInitRankConfig, missing);
  FindIn(library, "ncclCommGetAsyncError", table->CommGetAsyncError, missing);
  FindIn(library, "ncclCommAbort", table->CommAbort, missing);
  FindIn(library, "ncclGroupStart", table->GroupStart, missing);
  FindIn(library, "ncclGroupEnd", table->GroupEnd, missing);
  FindIn(library, "ncclSend", table->Send, missing);
  FindIn(library, "ncclRecv", table->Recv, missing);
  FindIn(library, "ncclAllGather", table->AllGather, missing);
  FindIn(library, "ncclReduceScatter", table->ReduceScatter, missing);
  FindIn(library, "ncclAllReduce", table->AllReduce, missing);
  FindIn(library, "ncclBroadcast", table->Broadcast, missing);
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
