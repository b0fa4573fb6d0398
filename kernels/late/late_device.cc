#include "kernels/late/late_device.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

// Work is kept until there is more of it than a number drawn up to this one, or the host waits.
constexpr uint64_t kMostWaiting = 200;

double SteadySeconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

struct LateBackend::Mark {
  uint64_t recorded = 0;  // calls of Record()
  uint64_t passed = 0;    // of them, that the queue has reached
  double seconds = 0;     // when it reached the last
};

class LateBackend::LateEvent : public Event {
 public:
  const std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

absl::Status LateBackend::LateQueue::CopyIn(void* device, const void* pinned, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (!backend_->memory_->Contains(device, bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("copy: ", bytes, " bytes not of the device"));
  }
  NIBBLE_RETURN_IF_ERROR(backend_->pinned_.Lend(pinned, bytes, /*written=*/false));
  return backend_->Enqueue(*this, {.run =
                                       [this, device, pinned, bytes] {
                                         backend_->pinned_.Open();
                                         std::memcpy(device, pinned, bytes);
                                         backend_->pinned_.Return(pinned, /*written=*/false);
                                         return absl::OkStatus();
                                       },
                                   .once = true});
}

absl::Status LateBackend::LateQueue::CopyOut(void* pinned, const void* device, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (!backend_->memory_->Contains(device, bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("copy: ", bytes, " bytes not of the device"));
  }
  NIBBLE_RETURN_IF_ERROR(backend_->pinned_.Lend(pinned, bytes, /*written=*/true));
  return backend_->Enqueue(*this, {.run =
                                       [this, device, pinned, bytes] {
                                         backend_->pinned_.Open();
                                         std::memcpy(pinned, device, bytes);
                                         backend_->pinned_.Return(pinned, /*written=*/true);
                                         return absl::OkStatus();
                                       },
                                   .once = true});
}

absl::Status LateBackend::LateQueue::Copy(const DeviceCopy& copy) {
  if (copy.line_bytes == 0 || copy.lines == 0) return absl::OkStatus();
  if (!backend_->memory_->Contains(copy.to, copy.to_bytes()) ||
      !backend_->memory_->Contains(copy.from, copy.from_bytes())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "copy: ", copy.lines, " lines of ", copy.line_bytes, " bytes are not within the device"));
  }
  return backend_->Enqueue(*this, {.run = [copy] {
    for (size_t line = 0; line < copy.lines; ++line) {
      std::memcpy(static_cast<char*>(copy.to) + line * copy.to_pitch,
                  static_cast<const char*>(copy.from) + line * copy.from_pitch, copy.line_bytes);
    }
    return absl::OkStatus();
  }});
}

absl::Status LateBackend::LateQueue::Host(std::function<absl::Status()> work) {
  return backend_->Enqueue(*this, {.run = std::move(work), .on_device = false, .on_host = true});
}

absl::Status LateBackend::LateQueue::Record(Event& event) {
  const std::shared_ptr<Mark> mark = static_cast<LateEvent&>(event).mark;
  ++mark->recorded;
  return backend_->Enqueue(*this, {.run =
                                       [this, mark] {
                                         ++mark->passed;
                                         mark->seconds = backend_->clock_();
                                         return absl::OkStatus();
                                       },
                                   .on_device = false});
}

absl::Status LateBackend::LateQueue::WaitFor(const Event& event) {
  const std::shared_ptr<Mark>& mark = static_cast<const LateEvent&>(event).mark;
  return backend_->Enqueue(*this, {.run = [] { return absl::OkStatus(); },
                                   .on_device = false,
                                   .after = mark,
                                   .count = mark->recorded});
}

absl::Status LateBackend::LateQueue::BeginRecording() {
  if (recording_ != nullptr) return absl::FailedPreconditionError("the queue records already");
  recording_ = std::make_unique<LateRecording>();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Recording>> LateBackend::LateQueue::EndRecording() {
  if (recording_ == nullptr) return absl::FailedPreconditionError("the queue does not record");
  recording_->frees = backend_->memory_->frees();
  if (recording_->work.empty()) recording_ = nullptr;
  return std::move(recording_);
}

bool LateBackend::LateQueue::IsValid(const Recording& recording) const {
  return static_cast<const LateRecording&>(recording).frees == backend_->memory_->frees();
}

absl::Status LateBackend::LateQueue::Run(const Recording& recording) {
  if (!IsValid(recording)) {
    return absl::FailedPreconditionError("memory was freed since the work was recorded");
  }
  for (const Work& work : static_cast<const LateRecording&>(recording).work) {
    NIBBLE_RETURN_IF_ERROR(backend_->Enqueue(*this, work));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LateBackend>> LateBackend::Create(const Options& options) {
  std::unique_ptr<LateBackend> backend(new LateBackend());
  NIBBLE_ASSIGN_OR_RETURN(backend->cpu_, CpuBackend::Create({.threads = options.threads}));
  LateBackend* self = backend.get();
  NIBBLE_ASSIGN_OR_RETURN(
      backend->memory_, LateMemory::Create(options.memory_bytes, [self] { return self->Drain(); }));
  backend->clock_ = options.clock ? options.clock : SteadySeconds;
  backend->random_.seed(options.seed);
  for (LateQueue& queue : backend->queues_) queue.backend_ = self;
  return backend;
}

LateBackend::~LateBackend() { (void)Drain(); }

absl::Status LateBackend::Enqueue(LateQueue& queue, Work work) {
  if (running_) {
    return absl::FailedPreconditionError("the device was called by work of one of its queues");
  }
  NIBBLE_RETURN_IF_ERROR(failed_);
  if (queue.recording_ != nullptr) {
    if (!work.on_device || work.once) {
      return absl::FailedPreconditionError("a recording has only work within the device");
    }
    queue.recording_->work.push_back(std::move(work));
    return absl::OkStatus();
  }
  queue.work_.push_back(std::move(work));
  if (waiting() <= random_() % kMostWaiting) return absl::OkStatus();
  // Some of it, in some order. Blocked queues wait for work that is not enqueued yet.
  for (uint64_t n = random_() % kMostWaiting; n > 0 && waiting() > 0; --n) {
    const absl::Status ran = RunOne();
    if (absl::IsFailedPrecondition(ran)) break;
    NIBBLE_RETURN_IF_ERROR(ran);
  }
  memory_->Close();
  return absl::OkStatus();
}

absl::Status LateBackend::RunOne() {
  const size_t first = random_() % 2;
  for (const size_t i : {first, 1 - first}) {
    LateQueue& queue = queues_[i];
    if (queue.work_.empty()) continue;
    if (queue.work_.front().after &&
        queue.work_.front().after->passed < queue.work_.front().count) {
      continue;
    }
    const Work work = std::move(queue.work_.front());
    queue.work_.pop_front();
    if (work.on_device) {
      memory_->Open();
    } else {
      memory_->Close();
    }
    if (work.on_host) pinned_.Open();
    running_ = true;
    const absl::Status status = work.run();
    running_ = false;
    pinned_.Close();
    if (!status.ok()) {
      memory_->Close();
      failed_ = status;
      for (LateQueue& dropped : queues_) dropped.work_.clear();
    }
    return status;
  }
  return absl::FailedPreconditionError("the queues wait for an event that was never recorded");
}

absl::Status LateBackend::Drain() {
  if (running_) return absl::FailedPreconditionError("a queue's work waits for the queues");
  while (failed_.ok() && waiting() > 0) {
    if (const absl::Status ran = RunOne(); !ran.ok()) {
      memory_->Close();
      return ran;
    }
  }
  memory_->Close();
  return failed_;
}

absl::Status LateBackend::Pass(const OpCost&, std::function<absl::Status()> operation) {
  return Enqueue(queues_[0], {.run = std::move(operation)});
}

absl::Status LateBackend::Quantize(const QuantizeRequest& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return Pass(CostOf(request), [this, request] { return cpu_->Quantize(request); });
}

absl::StatusOr<std::unique_ptr<Event>> LateBackend::NewEvent() {
  return std::make_unique<LateEvent>();
}

absl::Status LateBackend::Wait(const Event& event) {
  const std::shared_ptr<Mark> mark = static_cast<const LateEvent&>(event).mark;
  absl::Status status = failed_;
  // Not further than to the mark: what comes after it stays late.
  while (status.ok() && mark->passed < mark->recorded) status = RunOne();
  memory_->Close();
  return status;
}

absl::StatusOr<bool> LateBackend::HasPassed(const Event& event) {
  NIBBLE_RETURN_IF_ERROR(failed_);
  const std::shared_ptr<Mark>& mark = static_cast<const LateEvent&>(event).mark;
  return mark->passed == mark->recorded;
}

absl::StatusOr<double> LateBackend::SecondsBetween(const Event& begin, const Event& end) {
  NIBBLE_RETURN_IF_ERROR(Wait(end));
  return static_cast<const LateEvent&>(end).mark->seconds -
         static_cast<const LateEvent&>(begin).mark->seconds;
}

absl::Status LateBackend::Synchronize() { return Drain(); }

absl::StatusOr<std::unique_ptr<LateDevice>> LateDevice::Create(
    const LateBackend::Options& options) {
  auto device = std::make_unique<LateDevice>();
  NIBBLE_ASSIGN_OR_RETURN(device->backend_, LateBackend::Create(options));
  ThreadPool& pool = device->backend_->pool();
  NIBBLE_ASSIGN_OR_RETURN(device->gemm_, CpuGemm::Create(pool, {}));
  device->ops_ = std::make_unique<CpuLayerOps>(pool);
  device->late_gemm_ = std::make_unique<WrappedGemm>(*device->gemm_, *device->backend_);
  device->late_ops_ = std::make_unique<WrappedLayerOps>(*device->ops_, *device->backend_);
  return device;
}

}  // namespace nibble
