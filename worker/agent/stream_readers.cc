#include "worker/agent/stream_readers.h"

#include <chrono>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/stall/cut_off.h"

namespace nibble {
namespace {

int64_t SteadyNowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ReaderLimits WithClock(ReaderLimits limits) {
  if (limits.now_ms == nullptr) limits.now_ms = SteadyNowMs;
  return limits;
}

}  // namespace

StreamReaders::StreamReaders(std::string what, absl::StatusCode code, ReaderLimits limits)
    : what_(std::move(what)), code_(code), limits_(WithClock(std::move(limits))) {
  thread_ = std::thread([this] { Serve(); });
}

StreamReaders::~StreamReaders() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

StreamReaders::Reading::~Reading() {
  const MutexLock lock(&readers_.mutex_);
  readers_.readings_.erase(this);
}

absl::StatusOr<std::unique_ptr<StreamReaders::Reading>> StreamReaders::Begin(
    grpc::ServerContext& context) {
  std::unique_ptr<Reading> reading = absl::WrapUnique(new Reading(*this, context));
  const MutexLock lock(&mutex_);
  if (readings_.size() >= limits_.most) {
    return absl::Status(code_, absl::StrCat("readers: ", limits_.most, " already read ", what_,
                                            " of this worker, the most at once"));
  }
  readings_.insert(reading.get());
  return reading;
}

void StreamReaders::Serve() {
  const std::chrono::milliseconds between(limits_.look_ms);
  const MutexLock lock(&mutex_);
  while (!ending_) {
    if (changed_.WaitFor(&mutex_, between)) CutStalled();
  }
}

void StreamReaders::CutStalled() {
  const int64_t now_ms = limits_.now_ms();
  for (Reading* const reading : readings_) {
    const int64_t for_ms = reading->look_.Look(now_ms, reading->waits_, reading->taken_);
    if (for_ms <= limits_.stall_ms) continue;
    const absl::Status why = ReadsTooSlowly(absl::StrCat("the reader of ", what_), for_ms,
                                            limits_.stall_ms, "ask again");
    CutOff(reading->context_.c_call(), absl::Status(code_, why.message()));
  }
}

}  // namespace nibble
