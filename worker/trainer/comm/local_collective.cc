#include "worker/trainer/comm/local_collective.h"

#include <cstring>
#include <string>

namespace nibble {
namespace {

class LocalCollective final : public Collective {
 public:
  LocalCollective() : Collective(0, 1) {}
  std::string Name() const override { return "local, rank 0 of 1"; }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  static absl::Status Copy(const void* in, void* out, int64_t bytes) {
    if (in != out) std::memcpy(out, in, bytes);
    return absl::OkStatus();
  }

  absl::Status DoAllGather(const Operation&, const void* in, void* out, int64_t bytes) override {
    return Copy(in, out, bytes);
  }
  absl::Status DoReduceScatter(const Operation&, const float* in, float* out,
                               int64_t count) override {
    return Copy(in, out, count * static_cast<int64_t>(sizeof(float)));
  }
  absl::Status DoAllReduce(const Operation&, void*, int64_t, ReduceElement, Reduction) override {
    return absl::OkStatus();
  }
  absl::Status DoBroadcast(const Operation&, void*, int64_t, int) override {
    return absl::OkStatus();
  }
  absl::Status DoBarrier(const Operation&) override { return absl::OkStatus(); }
  absl::Status DoExchange(const Operation&, uint64_t*, int64_t) override {
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Collective> CreateLocal() { return std::make_unique<LocalCollective>(); }

}  // namespace nibble
