#include "kernels/cuda/nccl/fake_nccl.h"

#include <cstring>

namespace nibble {
namespace {

int64_t busy_left = 0;
int64_t piece_begin = 0;  // of the piece that is exchanged, from the begin of its slice

ncclComm_t TheComm() { return reinterpret_cast<ncclComm_t>(&FakeNccl()); }

size_t BytesOf(ncclDataType_t type) { return type == ncclInt8 ? 1 : type == ncclFloat32 ? 4 : 8; }

ncclResult_t GetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
ncclResult_t GetUniqueId(ncclUniqueId* id) {
  std::memset(id, 7, sizeof(*id));
  return ncclSuccess;
}
const char* GetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error";
}
const char* GetLastError(ncclComm_t) { return "of a test"; }

ncclResult_t CommInitRankConfig(ncclComm_t* comm, int world, ncclUniqueId, int rank,
                                ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  FakeNccl().world = world;
  FakeNccl().rank = rank;
  busy_left = FakeNccl().busy;
  *comm = TheComm();
  return ncclInProgress;
}
ncclResult_t CommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  if (comm != TheComm()) return ncclInvalidArgument;
  *result = busy_left > 0 ? ncclInProgress : FakeNccl().state;
  if (busy_left > 0) --busy_left;
  return ncclSuccess;
}
ncclResult_t CommAbort(ncclComm_t comm) {
  if (comm != TheComm()) return ncclInvalidArgument;
  ++FakeNccl().aborts;
  return ncclSuccess;
}

ncclResult_t GroupStart() {
  ++FakeNccl().groups;
  return ncclSuccess;
}
ncclResult_t GroupEnd() {
  busy_left = FakeNccl().busy;
  return ncclInProgress;
}

ncclResult_t Send(const void* data, size_t, ncclDataType_t, int peer, ncclComm_t, cudaStream_t) {
  const FakeNcclState& fake = FakeNccl();
  piece_begin = static_cast<const char*>(data) - fake.in[fake.rank] - peer * fake.slice_bytes;
  return ncclSuccess;
}
// Pieces begin at the same place on every rank.
ncclResult_t Recv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t,
                  cudaStream_t) {
  const FakeNcclState& fake = FakeNccl();
  std::memcpy(data, fake.in[peer] + fake.rank * fake.slice_bytes + piece_begin,
              count * BytesOf(type));
  return ncclSuccess;
}

ncclResult_t AllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t,
                       cudaStream_t) {
  const size_t bytes = count * BytesOf(type);
  for (int r = 0; r < FakeNccl().world; ++r) {
    const void* from = r == FakeNccl().rank ? in : FakeNccl().in[r];
    std::memmove(static_cast<char*>(out) + static_cast<size_t>(r) * bytes, from, bytes);
  }
  return ncclSuccess;
}
ncclResult_t Broadcast(const void*, void* data, size_t count, ncclDataType_t type, int root,
                       ncclComm_t, cudaStream_t) {
  if (root != FakeNccl().rank) std::memcpy(data, FakeNccl().in[root], count * BytesOf(type));
  return ncclSuccess;
}

// out = the sum of [count] floats at `offset` of every rank's, the last rank first.
void SumBackwards(int64_t offset, void* out, size_t count) {
  std::vector<float> sum(count, 0.0f), x(count);
  for (int r = FakeNccl().world; r-- > 0;) {
    std::memcpy(x.data(), FakeNccl().in[r] + offset, count * sizeof(float));
    for (size_t i = 0; i < count; ++i) sum[i] += x[i];
  }
  std::memcpy(out, sum.data(), count * sizeof(float));
}
ncclResult_t ReduceScatter(const void*, void* out, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t, cudaStream_t) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  SumBackwards(FakeNccl().rank * FakeNccl().slice_bytes, out, count);
  return ncclSuccess;
}
ncclResult_t AllReduce(const void*, void* out, size_t count, ncclDataType_t type, ncclRedOp_t,
                       ncclComm_t, cudaStream_t) {
  if (type != ncclFloat32) return ncclInvalidArgument;
  SumBackwards(0, out, count);
  return ncclSuccess;
}

}  // namespace

FakeNcclState& FakeNccl() {
  static FakeNcclState state;
  return state;
}

const NcclLibrary& FakeNcclLibrary() {
  static const NcclLibrary library = {.GetVersion = GetVersion,
                                      .GetUniqueId = GetUniqueId,
                                      .GetErrorString = GetErrorString,
                                      .GetLastError = GetLastError,
                                      .CommInitRankConfig = CommInitRankConfig,
                                      .CommGetAsyncError = CommGetAsyncError,
                                      .CommAbort = CommAbort,
                                      .GroupStart = GroupStart,
                                      .GroupEnd = GroupEnd,
                                      .Send = Send,
                                      .Recv = Recv,
                                      .AllGather = AllGather,
                                      .ReduceScatter = ReduceScatter,
                                      .AllReduce = AllReduce,
                                      .Broadcast = Broadcast};
  return library;
}

}  // namespace nibble
