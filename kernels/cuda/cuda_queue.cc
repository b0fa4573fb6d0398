#include "kernels/cuda/cuda_queue.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_memory.h"

namespace nibble {
namespace {

struct HostWork {
  std::function<absl::Status()> run;
  QueueError& error;
};

// After an error nothing of the host's runs, since its input may be missing.
void CUDART_CB RunHostWork(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  if (!work->error.Get().ok()) return;
  if (const absl::Status status = work->run(); !status.ok()) work->error.Set(status);
}

}  // namespace

void QueueError::Set(const absl::Status& error) {
  const MutexLock lock(&mutex_);
  first_.Update(error);
}

absl::Status QueueError::Get() const {
  const MutexLock lock(&mutex_);
  return first_;
}

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Create() {
  cudaEvent_t event;
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaEventCreate(&event), "cudaEventCreate"));
  return std::unique_ptr<CudaEvent>(new CudaEvent(event));
}

absl::Status CudaQueue::CopyIn(void* device, const void* pinned, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return StatusOf(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_),
                  "cudaMemcpyAsync to the device");
}

absl::Status CudaQueue::CopyOut(void* pinned, const void* device, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return StatusOf(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream_),
                  "cudaMemcpyAsync from the device");
}

absl::Status CudaQueue::Copy(const DeviceCopy& copy) {
  if (copy.line_bytes == 0 || copy.lines == 0) return absl::OkStatus();
  // The pitch of a single line must still be no less than its length.
  const size_t to_pitch = copy.lines == 1 ? copy.line_bytes : copy.to_pitch;
  const size_t from_pitch = copy.lines == 1 ? copy.line_bytes : copy.from_pitch;
  return StatusOf(cudaMemcpy2DAsync(copy.to, to_pitch, copy.from, from_pitch, copy.line_bytes,
                                    copy.lines, cudaMemcpyDeviceToDevice, stream_),
                  "cudaMemcpy2DAsync within the device");
}

absl::Status CudaQueue::Host(std::function<absl::Status()> work) {
  auto owned = std::make_unique<HostWork>(HostWork{std::move(work), error_});
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaLaunchHostFunc(stream_, RunHostWork, owned.get()), "cudaLaunchHostFunc"));
  (void)owned.release();  // the function owns it now
  return absl::OkStatus();
}

absl::Status CudaQueue::Record(Event& event) {
  return StatusOf(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_),
                  "cudaEventRecord");
}

absl::Status CudaQueue::WaitFor(const Event& event) {
  return StatusOf(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).get(), 0),
                  "cudaStreamWaitEvent");
}

namespace {

struct GraphRecording : Recording {
  GraphRecording(cudaGraphExec_t graph, uint64_t frees) : graph(graph), frees(frees) {}
  // A graph that still runs is freed once it has run.
  ~GraphRecording() override { cudaGraphExecDestroy(graph); }

  const cudaGraphExec_t graph;
  const uint64_t frees;
};

}  // namespace

absl::Status CudaQueue::BeginRecording() {
  // Captures calls of this thread only: callbacks of transfers run on other threads.
  return StatusOf(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCapture");
}

absl::StatusOr<std::unique_ptr<Recording>> CudaQueue::EndRecording() {
  cudaGraph_t graph = nullptr;
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t runnable = nullptr;
  size_t nodes = 0;
  absl::Status made = StatusOf(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  if (made.ok() && nodes > 0) {
    made = StatusOf(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
  }
  cudaGraphDestroy(graph);
  NIBBLE_RETURN_IF_ERROR(made);
  if (runnable == nullptr) return std::unique_ptr<Recording>();
  return std::make_unique<GraphRecording>(runnable, frees_.load());
}

bool CudaQueue::IsValid(const Recording& recording) const {
  return static_cast<const GraphRecording&>(recording).frees == frees_.load();
}

absl::Status CudaQueue::Run(const Recording& recording) {
  if (!IsValid(recording)) {
    return absl::FailedPreconditionError("memory was freed since the work was recorded");
  }
  return StatusOf(cudaGraphLaunch(static_cast<const GraphRecording&>(recording).graph, stream_),
                  "cudaGraphLaunch");
}

absl::Status CudaQueue::Synchronize() {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return error_.Get();
}

absl::StatusOr<Buffer> CudaPinnedMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* data = nullptr;
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
                                  absl::StrCat("cudaHostAlloc of ", bytes, " bytes")));
  return Buffer(this, data, bytes);
}

absl::Status CudaPinnedMemory::CopyIn(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status CudaPinnedMemory::CopyOut(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

}  // namespace nibble
