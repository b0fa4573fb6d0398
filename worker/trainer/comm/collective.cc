#include "worker/trainer/comm/collective.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/formats/rank_order.h"
#include "worker/link/trainer_exit.h"

namespace nibble {

namespace {

constexpr const char* kNames[] = {"AllGather", "ReduceScatter", "AllReduce",
                                  "Broadcast", "Barrier",       "ExchangeSmall"};

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a);
  const auto b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

// Empty if `count` elements of `size` bytes for each of `world` ranks can be addressed.
std::string SizeProblem(const char* name, int64_t count, int64_t size, int world) {
  if (count < 0) return absl::StrCat(name, " = ", count, " is negative");
  const int64_t most = std::numeric_limits<int64_t>::max() / size / world;
  if (count > most) return absl::StrCat(name, " = ", count, " is above ", most);
  return "";
}

}  // namespace

absl::Status Collective::Refuse(Kind kind, const std::string& why) const {
  return absl::InvalidArgumentError(
      absl::StrCat(kNames[static_cast<int>(kind)], " on rank ", rank_, " of ", world_, ": ", why));
}

absl::Status Collective::Run(Kind kind, int64_t sends,
                             absl::FunctionRef<absl::Status(const Operation&)> run, Beside beside) {
  const char* name = kNames[static_cast<int>(kind)];
  if (!failed_.ok()) {
    return WithExit(
        absl::Status(failed_.code(),
                     absl::StrCat(name, " on rank ", rank_, " of ", world_,
                                  " not started, the group has failed: ", failed_.message())),
        TrainerExit::kPeer);
  }
  const Operation operation{kind, ++operations_, beside};
  sent_bytes_ += sends * (world_ - 1);
  if (observer_ != nullptr) observer_->Entered(name, operation.number);
  if (tracer_ != nullptr) tracer_->Entered(name, operation.number);
  const auto begun = std::chrono::steady_clock::now();
  const absl::Status status = run(operation);
  seconds_inside_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  if (tracer_ != nullptr) tracer_->Left();
  if (observer_ != nullptr) observer_->Left();
  if (status.ok()) return status;
  // Whatever happened to the others, this rank is not the cause.
  failed_ = WithExit(
      absl::Status(status.code(), absl::StrCat(name, " #", operation.number, " on rank ", rank_,
                                               " of ", world_, ": ", status.message())),
      TrainerExit::kPeer);
  return failed_;
}

absl::Status Collective::AllGather(const void* in, void* out, int64_t bytes, Beside beside) {
  if (const std::string why = SizeProblem("bytes", bytes, 1, world_); !why.empty()) {
    return Refuse(Kind::kAllGather, why);
  }
  if (bytes > 0) {
    if (in == nullptr || out == nullptr) return Refuse(Kind::kAllGather, "in or out is null");
    if (in != static_cast<char*>(out) + rank_ * bytes && Overlap(in, bytes, out, world_ * bytes)) {
      return Refuse(Kind::kAllGather, "in overlaps out but is not out[rank]");
    }
  }
  return Run(
      Kind::kAllGather, bytes,
      [&](const Operation& operation) {
        return bytes == 0 ? absl::OkStatus() : DoAllGather(operation, in, out, bytes);
      },
      beside);
}

absl::Status Collective::ReduceScatter(const float* in, float* out, int64_t count, Beside beside) {
  if (const std::string why = SizeProblem("count", count, sizeof(float), world_); !why.empty()) {
    return Refuse(Kind::kReduceScatter, why);
  }
  if (count > 0) {
    if (in == nullptr || out == nullptr) return Refuse(Kind::kReduceScatter, "in or out is null");
    const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
    if (out != in + rank_ * count && Overlap(in, world_ * bytes, out, bytes)) {
      return Refuse(Kind::kReduceScatter, "out overlaps in but is not in[rank]");
    }
  }
  return Run(
      Kind::kReduceScatter, count * int64_t{sizeof(float)},
      [&](const Operation& operation) {
        return count == 0 ? absl::OkStatus() : DoReduceScatter(operation, in, out, count);
      },
      beside);
}

absl::Status Collective::AllReduceAny(void* data, int64_t count, ReduceElement element,
                                      Reduction reduction) {
  const int64_t most = kMaxAllReduceBytes / ReduceElementBytes(element);
  if (count < 0 || count > most) {
    return Refuse(Kind::kAllReduce, absl::StrCat("count = ", count, " is not in [0, ", most, "]"));
  }
  if (count > 0 && data == nullptr) return Refuse(Kind::kAllReduce, "data is null");
  return Run(Kind::kAllReduce, count * ReduceElementBytes(element),
             [&](const Operation& operation) {
               return count == 0 ? absl::OkStatus()
                                 : DoAllReduce(operation, data, count, element, reduction);
             });
}

absl::Status Collective::AllReduce(float* data, int64_t count, Reduction reduction) {
  return AllReduceAny(data, count, ReduceElement::kFloat32, reduction);
}
absl::Status Collective::AllReduce(double* data, int64_t count, Reduction reduction) {
  return AllReduceAny(data, count, ReduceElement::kFloat64, reduction);
}
absl::Status Collective::AllReduce(int64_t* data, int64_t count, Reduction reduction) {
  return AllReduceAny(data, count, ReduceElement::kInt64, reduction);
}

absl::Status Collective::Broadcast(void* data, int64_t bytes, int root) {
  if (root < 0 || root >= world_) {
    return Refuse(Kind::kBroadcast, absl::StrCat("root = ", root, " is not in [0, ", world_, ")"));
  }
  if (const std::string why = SizeProblem("bytes", bytes, 1, 1); !why.empty()) {
    return Refuse(Kind::kBroadcast, why);
  }
  if (bytes > 0 && data == nullptr) return Refuse(Kind::kBroadcast, "data is null");
  return Run(Kind::kBroadcast, root == rank_ ? bytes : 0, [&](const Operation& operation) {
    return bytes == 0 ? absl::OkStatus() : DoBroadcast(operation, data, bytes, root);
  });
}

absl::Status Collective::Barrier() {
  return Run(Kind::kBarrier, 0, [&](const Operation& operation) { return DoBarrier(operation); });
}

absl::StatusOr<std::vector<uint64_t>> Collective::ExchangeSmall(std::span<const uint64_t> mine) {
  const int64_t count = static_cast<int64_t>(mine.size());
  if (count > kMaxExchangeWords) {
    return Refuse(Kind::kExchange,
                  absl::StrCat("mine.size() = ", count, " is above ", kMaxExchangeWords));
  }
  std::vector<uint64_t> words(count * world_);
  NIBBLE_RETURN_IF_ERROR(Run(Kind::kExchange, 0, [&](const Operation& operation) {
    if (count == 0) return absl::OkStatus();
    std::copy(mine.begin(), mine.end(), words.begin() + rank_ * count);
    return DoExchange(operation, words.data(), count);
  }));
  return words;
}

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

namespace {

constexpr int64_t kBlock = 1024;  // elements: 4 KiB, in the first-level cache beside one input

// Exactly kBlock or fewer elements; the fixed trip count of whole blocks lets the compiler use
// vectors without a check of the count.
void AddTo(float* sum, const float* x, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sum[i + j] = AddOfNextRank(sum[i + j], x[i + j]);
  }
  for (; i < count; ++i) sum[i] = AddOfNextRank(sum[i], x[i]);
}

template <class T>
void Reduce(const T* in, T* out, int ranks, int64_t count, Reduction reduction) {
  std::copy_n(in, count, out);
  for (int r = 1; r < ranks; ++r) {
    const T* x = in + r * count;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = reduction == Reduction::kSum ? AddOfNextRank(out[i], x[i])
                                            : MaxWithNextRank(out[i], x[i]);
    }
  }
}

}  // namespace

void SumInRankOrder(std::span<const float* const> in, float* out, int64_t count) {
  alignas(64) float sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    std::memcpy(sum, in[0] + begin, size * sizeof(float));
    for (size_t r = 1; r < in.size(); ++r) AddTo(sum, in[r] + begin, size);
    std::memcpy(out + begin, sum, size * sizeof(float));
  }
}

void ReduceInRankOrder(const void* in, void* out, int ranks, int64_t count, ReduceElement element,
                       Reduction reduction) {
  switch (element) {
    case ReduceElement::kFloat32:
      return Reduce(static_cast<const float*>(in), static_cast<float*>(out), ranks, count,
                    reduction);
    case ReduceElement::kFloat64:
      return Reduce(static_cast<const double*>(in), static_cast<double*>(out), ranks, count,
                    reduction);
    case ReduceElement::kInt64:
      return Reduce(static_cast<const int64_t*>(in), static_cast<int64_t*>(out), ranks, count,
                    reduction);
  }
}

}  // namespace nibble
