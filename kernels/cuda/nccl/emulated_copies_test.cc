// Connecting for copies, and exchanges over real flags in shared memory, on the host's emulation of
// a GPU: ranks are threads, a stream's operation runs in its call, and a wait blocks the thread.
// What the emulation lacks of CUDA is below.
#include <cuda.h>
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl/peer_copies.h"

namespace nibble {
namespace {

using testing::HasSubstr;

thread_local int this_rank = 0;
// The call that fails on a rank.
int failing_rank = -1;
std::string failing_call;

cudaError_t Outcome(const char* call) {
  return this_rank == failing_rank && call == failing_call ? cudaErrorUnknown : cudaSuccess;
}

CUresult RunBatch(CUstream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
  for (unsigned i = 0; i < count; ++i) {
    const auto& operation = operations[i];
    const std::atomic_ref<uint32_t> flag(*reinterpret_cast<uint32_t*>(operation.waitValue.address));
    if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
      flag.store(operation.writeValue.value);
      continue;
    }
    while (!CopyFlagReached(flag.load(), operation.waitValue.value)) std::this_thread::yield();
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace nibble

extern "C" {
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&nibble::RunBatch);
  *found = cudaDriverEntryPointSuccess;
  return nibble::Outcome("entry point");
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &memory, sizeof(memory));
  return nibble::Outcome("get handle");
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  std::memcpy(memory, &handle, sizeof(*memory));
  return nibble::Outcome("open handle");
}
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return nibble::Outcome("host pointer");
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = *highest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
}

namespace nibble {
namespace {

constexpr int kRanks = 3;

// Ranks as threads, and what they tell one another.
class ThreadRanks {
 public:
  // Runs `rank` on every rank, with what it got of ConnectCopies().
  void Run(const std::function<void(int, PeerCopies&)>& rank) {
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([this, r, &rank] {
        this_rank = r;
        const auto backend = CudaBackend::Create(0);
        ASSERT_TRUE(backend.ok()) << backend.status();
        auto copies = ConnectCopies(**backend, r, kRanks, [&](std::span<const uint64_t> mine) {
          return Exchange(r, mine);
        });
        ASSERT_TRUE(copies.ok()) << copies.status();
        rank(r, *copies);
        // Nobody's slots go while another rank may write into them.
        Meet();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Meet() { barrier_.arrive_and_wait(); }

 private:
  absl::StatusOr<std::vector<uint64_t>> Exchange(int rank, std::span<const uint64_t> mine) {
    rows_[rank].assign(mine.begin(), mine.end());
    Meet();
    std::vector<uint64_t> all;
    for (const auto& row : rows_) all.insert(all.end(), row.begin(), row.end());
    Meet();
    return all;
  }

  std::barrier<> barrier_{kRanks};
  std::vector<uint64_t> rows_[kRanks];
};

char ByteOf(int rank, int64_t i) { return static_cast<char>(i * 7 + i / 4099 + rank * 31); }

// Sends [kRanks, bytes] to the others, and receives as much.
struct ByteExchange {
  ByteExchange(PeerCopies& copies, int rank, int64_t bytes)
      : rank(rank),
        bytes(bytes),
        exchange(*copies.streams, rank, kRanks),
        stride(copies.streams->slots().slot_bytes),
        in(static_cast<size_t>(kRanks * bytes)),
        out(in.size()) {
    for (int64_t i = 0; i < kRanks * bytes; ++i) in[static_cast<size_t>(i)] = ByteOf(rank, i);
  }
  absl::Status Run() {
    return exchange.Run(
        bytes, [&](int peer) { return in.data() + peer * bytes; },
        [&](int64_t first, int64_t part, const char* lanes) {
          for (int peer = 0; peer < kRanks; ++peer) {
            if (peer == rank) continue;
            std::memcpy(out.data() + peer * bytes + first, lanes + CopyLane(rank, peer) * stride,
                        static_cast<size_t>(part));
          }
          return absl::OkStatus();
        });
  }
  int64_t Wrong() const {
    int64_t wrong = 0;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      for (int64_t i = 0; i < bytes; ++i) {
        if (out[static_cast<size_t>(peer * bytes + i)] != ByteOf(peer, rank * bytes + i)) ++wrong;
      }
    }
    return wrong;
  }

  const int rank;
  const int64_t bytes;
  CopyExchange exchange;
  const int64_t stride;
  std::vector<char> in, out;
};

class EmulatedCopies : public testing::Test {
 protected:
  void TearDown() override { failing_rank = -1; }
  void Fail(int rank, const char* call) {
    failing_rank = rank;
    failing_call = call;
  }
  // What every rank says about why there are no copies.
  std::vector<std::string> WhyNot() {
    std::vector<std::string> why(kRanks);
    ThreadRanks().Run([&](int rank, PeerCopies& copies) {
      EXPECT_EQ(copies.streams, nullptr);
      why[static_cast<size_t>(rank)] = copies.why_not;
    });
    return why;
  }
};

TEST_F(EmulatedCopies, RanksExchangeMoreThanTheirSlotsHold) {
  ThreadRanks().Run([](int rank, PeerCopies& copies) {
    ASSERT_NE(copies.streams, nullptr) << copies.why_not;
    const CopySlots slots = copies.streams->slots();
    ByteExchange bytes(copies, rank, (slots.slots + 1) * slots.slot_bytes + 77);
    for (int operation = 0; operation < 2; ++operation) {
      ASSERT_TRUE(bytes.Run().ok());
      EXPECT_EQ(bytes.Wrong(), 0) << "rank " << rank;
      std::fill(bytes.out.begin(), bytes.out.end(), char{0});
    }
    EXPECT_TRUE(copies.streams->PeersStatus().ok());
  });
}

TEST_F(EmulatedCopies, RanksWhosePeerDoesNotComeAreReleasedAndTellTheOthers) {
  ThreadRanks ranks;
  ranks.Run([&](int rank, PeerCopies& copies) {
    ASSERT_NE(copies.streams, nullptr) << copies.why_not;
    if (rank == 2) {
      ranks.Meet();
      EXPECT_TRUE(absl::IsUnavailable(copies.streams->PeersStatus()));
      return;
    }
    ByteExchange bytes(copies, rank, 100);
    std::thread watch([&] {
      while (bytes.exchange.issued() == 0) std::this_thread::yield();
      copies.streams->Release(bytes.exchange.issued(), true);
    });
    EXPECT_TRUE(bytes.Run().ok());
    watch.join();
    ranks.Meet();
    EXPECT_THAT(std::string(copies.streams->PeersStatus().message()),
                HasSubstr(rank == 0 ? "rank 1 gave up" : "rank 0 gave up"));
  });
}

TEST_F(EmulatedCopies, ARankThatCannotIsNamedByAllAndNoneUsesCopies) {
  const struct {
    int rank;
    const char* call;
    const char* why;
  } kCases[] = {
      {1, "entry point", "the card of rank 1 has no stream memory operations"},
      {2, "get handle", "rank 2 cannot share memory of its card"},
      {0, "host pointer", "rank 0 cannot share memory of the host"},
      {2, "host pointer", "rank 2 cannot share memory of the host"},
      {1, "open handle", "rank 1 cannot map the memory of another rank's card"},
  };
  for (const auto& c : kCases) {
    Fail(c.rank, c.call);
    for (const std::string& why : WhyNot()) EXPECT_THAT(why, HasSubstr(c.why)) << c.call;
  }
}

}  // namespace
}  // namespace nibble
