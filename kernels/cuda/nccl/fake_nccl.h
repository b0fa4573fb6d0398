// A NCCL in plain C++ for tests without a GPU: one rank runs, and what the others would send is
// read from memory that the test names. So that a group's pieces, offsets and order of calls are
// tested, though not NCCL's own transport.
//
// Thread-safety: one thread at a time; one group per process at a time.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_FAKE_NCCL_H_
#define NIBBLE_KERNELS_CUDA_NCCL_FAKE_NCCL_H_

#include <cstdint>
#include <vector>

#include "kernels/cuda/nccl/nccl_library.h"

namespace nibble {

struct FakeNcclState {
  int rank = 0;
  int world = 1;
  // What each rank passes to the operation that runs; for a reduce-scatter with the bytes from one
  // slice to the next.
  std::vector<const char*> in;
  int64_t slice_bytes = 0;
  // How often the communicator answers that it is still at work, after each group and at first.
  int64_t busy = 0;
  ncclResult_t state = ncclSuccess;  // what it answers then
  int64_t groups = 0, aborts = 0;    // calls
};
FakeNcclState& FakeNccl();

// Sums of its own are in the opposite of rank order.
const NcclLibrary& FakeNcclLibrary();

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_FAKE_NCCL_H_
