#include "kernels/cuda/gpu_emulation.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace nibble::gpu::emulation {

double clock_ms = 0;
uint3 thread_index;
uint3 block_index;
dim3 block_size;
dim3 grid_size;

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kSharedBytes = 227 << 10;  // the limit per thread block on Hopper
constexpr unsigned kWarp = 32;

// Switches go through GCC's jumps: those of ucontext.h make a system call each.
struct Fiber {
  ucontext_t context;  // of its beginning
  bool begun = false;
  void* place[5];  // where it stopped
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  bool done = false;
  const std::function<bool()>* ready = nullptr;  // null: it can run
  const char* what = nullptr;
};

// A barrier with a reduction: the last thread to arrive starts the next round and stores the
// result.
struct Meeting {
  unsigned arrived = 0;
  unsigned round = 0;
  uint32_t gathering = 0;
  uint32_t result = 0;
};

struct Block {
  std::deque<Fiber> fibers;  // kept for the next kernel
  void* scheduler[5];
  unsigned running = 0;
  unsigned live = 0;
  Meeting all;
  std::vector<Meeting> warp;
  std::vector<unsigned> warp_live;
  std::vector<uint64_t> brought;
  const std::function<void()>* kernel = nullptr;
};

Block block;
alignas(128) unsigned char shared[kSharedBytes];

// A function of its own: GCC does not allow both halves of a switch in one.
[[noreturn, gnu::noinline]] void JumpTo(void** place) { __builtin_longjmp(place, 1); }

[[gnu::noinline]] void Yield() {
  if (__builtin_setjmp(block.fibers[block.running].place) == 0) JumpTo(block.scheduler);
}

// A fiber runs the threads of its number, block after block.
[[noreturn]] void Enter() {
  for (;;) {
    (*block.kernel)();
    block.fibers[block.running].done = true;
    --block.live;
    --block.warp_live[block.running / kWarp];
    Yield();
  }
}

[[gnu::noinline]] void Resume(Fiber& fiber) {
  if (__builtin_setjmp(block.scheduler) != 0) return;
  if (fiber.begun) JumpTo(fiber.place);
  fiber.begun = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, Enter, 0);
  setcontext(&fiber.context);
}

uint32_t Apply(uint32_t a, uint32_t b, Combine how) {
  switch (how) {
    case Combine::kOr:
      return a | b;
    case Combine::kMax:
      return a > b ? a : b;
    case Combine::kMin:
      break;
  }
  return a < b ? a : b;
}

// `live`: the number of threads to wait for; it may shrink as threads return.
uint32_t Meet(Meeting& meeting, const unsigned& live, uint32_t value, Combine how) {
  const unsigned round = meeting.round;
  meeting.gathering = meeting.arrived == 0 ? value : Apply(meeting.gathering, value, how);
  ++meeting.arrived;
  while (meeting.round == round) {
    if (meeting.arrived >= live) {
      meeting.result = meeting.gathering;
      meeting.arrived = 0;
      ++meeting.round;
      break;
    }
    // One captured address: std::function stores it without allocating.
    const struct {
      const Meeting& meeting;
      const unsigned& live;
      unsigned round;
    } wait = {meeting, live, round};
    WaitUntil(
        [&wait] { return wait.meeting.round != wait.round || wait.meeting.arrived >= wait.live; },
        "other threads");
  }
  return meeting.result;
}

[[noreturn]] void ReportStuck() {
  for (size_t i = 0; i < block_size.x; i += kWarp) {  // the first of each warp
    if (block.fibers[i].done) continue;
    std::fprintf(stderr, "emulation: thread %zu of block %u waits for %s, which never comes\n", i,
                 block_index.x, block.fibers[i].what);
  }
  std::abort();
}

}  // namespace

unsigned char* Shared() { return shared; }

void WaitUntil(const std::function<bool()>& ready, const char* what) {
  Fiber& fiber = block.fibers[block.running];
  while (!ready()) {
    fiber.ready = &ready;
    fiber.what = what;
    Yield();
    fiber.ready = nullptr;
  }
}

uint32_t BlockCombine(uint32_t value, Combine how) {
  return Meet(block.all, block.live, value, how);
}

uint32_t WarpCombine(uint32_t value, Combine how) {
  const unsigned warp = block.running / kWarp;
  return Meet(block.warp[warp], block.warp_live[warp], value, how);
}

uint64_t WarpExchange(uint64_t value, unsigned lane_mask) {
  const unsigned me = block.running;
  block.brought[me] = value;
  WarpCombine(0, Combine::kOr);
  const uint64_t result = block.brought[me ^ lane_mask];
  WarpCombine(0, Combine::kOr);
  return result;
}

void RunGrid(dim3 grid, unsigned threads, size_t shared_bytes,
             const std::function<void()>& kernel) {
  if (shared_bytes > kSharedBytes || threads == 0 || threads > 1024) std::abort();
  block_size = dim3(threads);
  grid_size = grid;
  block.kernel = &kernel;
  if (block.fibers.size() < threads) block.fibers.resize(threads);
  block.brought.assign(threads, 0);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        std::memset(shared, 0xcc, kSharedBytes);
        block.live = threads;
        block.all = {};
        block.warp.assign((threads + kWarp - 1) / kWarp, {});
        block.warp_live.assign(block.warp.size(), kWarp);
        for (unsigned i = 0; i < threads; ++i) {
          block.fibers[i].done = false;
          block.fibers[i].ready = nullptr;
        }
        while (block.live > 0) {
          bool stuck = true;
          for (unsigned i = 0; i < threads; ++i) {
            Fiber& fiber = block.fibers[i];
            if (fiber.done || (fiber.ready != nullptr && !(*fiber.ready)())) continue;
            stuck = false;
            block.running = i;
            thread_index = {i, 0, 0};
            Resume(fiber);
          }
          if (stuck) ReportStuck();
        }
      }
    }
  }
}

}  // namespace nibble::gpu::emulation

// The runtime calls that the backend makes; each succeeds at once.
extern "C" {
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "emulated");
  properties->major = 9;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t line = 0; line < height; ++line) {
    std::memcpy(static_cast<char*>(to) + line * to_pitch,
                static_cast<const char*>(from) + line * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t run, void* data) {
  run(data);
  return cudaSuccess;
}
// An event is the time at which it was recorded.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new double(0));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<double*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *reinterpret_cast<double*>(event) = nibble::gpu::emulation::clock_ms;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds =
      static_cast<float>(*reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(begin));
  return cudaSuccess;
}
// There is no queue here to record.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaErrorNotSupported; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
}
