#include "worker/trainer/comm/gloo_collective.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/comm/gloo_mesh.h"
#include "worker/trainer/comm/rendezvous.h"

namespace nibble {
namespace {

// Every rank must cut in the same way, so these depend on nothing but the world. Sizes measured
// with bench/comm_bench.cc.
constexpr int64_t kWindow = 3;                     // messages under way per pair and direction
constexpr int64_t kMaxMessage = int64_t{2} << 20;  // bytes; half of it costs a fifth more CPU
constexpr int64_t kMinMessage = int64_t{16} << 10;
constexpr int64_t kReduceBuffer = int64_t{64} << 20;

constexpr size_t kMaxAttemptBytes = 128;

int64_t ReduceMessage(int world) {
  const int64_t share = kReduceBuffer / (kWindow * (world - 1));
  return std::clamp(share / kMinMessage * kMinMessage, kMinMessage, kMaxMessage);
}

class GlooCollective final : public Collective {
 public:
  GlooCollective(const GlooOptions& options, std::unique_ptr<GlooMesh> mesh)
      : Collective(options.rank, options.world),
        name_(absl::StrCat("gloo tcp ",
                           options.interface.empty() ? options.bind_address : options.interface,
                           ", rank ", options.rank, " of ", options.world)),
        mesh_(std::move(mesh)) {}

  std::string Name() const override { return name_; }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  bool at_once() const override { return true; }
  // Distinguishes operations and their shapes: ranks that call different operations time out
  // instead of receiving each other's messages.
  static uint64_t Tag(const Operation& operation, int64_t size, int detail = 0) {
    uint64_t shape = static_cast<uint64_t>(size) * 31 + static_cast<uint64_t>(detail);
    shape = (shape * 8 + static_cast<uint64_t>(operation.kind)) * 0x9e3779b97f4a7c15;
    return operation.number << 32 | shape >> 32 | GlooMesh::kFirstTag;
  }

  static int64_t MessagesOf(int64_t bytes) { return (bytes + kMaxMessage - 1) / kMaxMessage; }
  template <class Byte>
  static std::span<Byte> Message(Byte* data, int64_t bytes, int64_t row) {
    const int64_t begin = row * kMaxMessage;
    return {data + begin, static_cast<size_t>(std::min(kMaxMessage, bytes - begin))};
  }

  // all: [world, bytes]; this rank's row is there.
  absl::Status Gather(uint64_t tag, std::byte* all, int64_t bytes) {
    return mesh_->Exchange(
        tag,
        {.count = MessagesOf(bytes),
         .window = kWindow,
         .send =
             [&](int, int64_t row) {
               return std::span<const std::byte>(Message(all + rank() * bytes, bytes, row));
             },
         .receive = [&](int peer, int64_t row) { return Message(all + peer * bytes, bytes, row); },
         .arrived = [](int64_t) {}});
  }

  absl::Status DoAllGather(const Operation& operation, const void* in, void* out,
                           int64_t bytes) override {
    auto* all = static_cast<std::byte*>(out);
    if (in != all + rank() * bytes) std::memcpy(all + rank() * bytes, in, bytes);
    return Gather(Tag(operation, bytes), all, bytes);
  }

  absl::Status DoReduceScatter(const Operation& operation, const float* in, float* out,
                               int64_t count) override {
    const int64_t message = ReduceMessage(world()) / static_cast<int64_t>(sizeof(float));
    if (reduce_ == nullptr) {
      reduce_ = std::make_unique_for_overwrite<float[]>(kWindow * (world() - 1) * message);
    }
    const auto length = [&](int64_t row) { return std::min(message, count - row * message); };
    const auto slot = [&](int peer, int64_t row) {  // [kWindow, world - 1, message]
      const int64_t other = peer < rank() ? peer : peer - 1;
      return reduce_.get() + (row % kWindow * (world() - 1) + other) * message;
    };
    const auto sum = [&](int64_t row) {
      std::vector<const float*> slices(world());
      for (int r = 0; r < world(); ++r) {
        slices[r] = r == rank() ? in + r * count + row * message : slot(r, row);
      }
      SumInRankOrder(slices, out + row * message, length(row));
    };
    return mesh_->Exchange(Tag(operation, count),
                           {.count = (count + message - 1) / message,
                            .window = kWindow,
                            .send =
                                [&](int peer, int64_t row) {
                                  return std::as_bytes(std::span(in + peer * count + row * message,
                                                                 static_cast<size_t>(length(row))));
                                },
                            .receive =
                                [&](int peer, int64_t row) {
                                  return std::as_writable_bytes(
                                      std::span(slot(peer, row), static_cast<size_t>(length(row))));
                                },
                            .arrived = sum});
  }

  absl::Status DoAllReduce(const Operation& operation, void* data, int64_t count,
                           ReduceElement element, Reduction reduction) override {
    const int64_t bytes = count * ReduceElementBytes(element);
    gathered_.resize(world() * bytes);
    std::memcpy(gathered_.data() + rank() * bytes, data, bytes);
    const int detail = static_cast<int>(element) * 2 + static_cast<int>(reduction);
    NIBBLE_RETURN_IF_ERROR(Gather(Tag(operation, bytes, detail), gathered_.data(), bytes));
    ReduceInRankOrder(gathered_.data(), data, world(), count, element, reduction);
    return absl::OkStatus();
  }

  absl::Status DoBroadcast(const Operation& operation, void* data, int64_t bytes,
                           int root) override {
    auto* all = static_cast<std::byte*>(data);
    return mesh_->Exchange(
        Tag(operation, bytes, root),
        {.count = MessagesOf(bytes),
         .window = kWindow,
         .send =
             [&](int, int64_t row) {
               return std::span<const std::byte>(rank() == root ? Message(all, bytes, row)
                                                                : std::span<std::byte>());
             },
         .receive =
             [&](int peer, int64_t row) {
               return peer == root ? Message(all, bytes, row) : std::span<std::byte>();
             },
         .arrived = [](int64_t) {}});
  }

  absl::Status DoBarrier(const Operation& operation) override {
    gathered_.resize(world());
    return Gather(Tag(operation, 1), gathered_.data(), 1);
  }

  absl::Status DoExchange(const Operation& operation, uint64_t* words, int64_t count) override {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(uint64_t));
    return Gather(Tag(operation, bytes), reinterpret_cast<std::byte*>(words), bytes);
  }

  const std::string name_;
  const std::unique_ptr<GlooMesh> mesh_;
  std::unique_ptr<float[]> reduce_;  // messages of ReduceScatter under way
  std::vector<std::byte> gathered_;  // of the small operations
};

absl::Status Bad(const char* option, const std::string& value, const std::string& bound) {
  return absl::InvalidArgumentError(absl::StrCat(option, " = ", value, " ", bound));
}

absl::Status Check(const GlooOptions& options) {
  if (options.world < 1 || options.world > kMaxGlooWorld) {
    return Bad("world", std::to_string(options.world),
               absl::StrCat("not in [1, ", kMaxGlooWorld, "]"));
  }
  if (options.rank < 0 || options.rank >= options.world) {
    return Bad("rank", std::to_string(options.rank),
               absl::StrCat("not in [0, ", options.world, ")"));
  }
  if (options.timeout.count() < 1) {
    return Bad("timeout", absl::StrCat(options.timeout.count(), " ms"), "not above 0");
  }
  if (options.connect_timeout.count() < 1) {
    return Bad("connect_timeout", absl::StrCat(options.connect_timeout.count(), " ms"),
               "not above 0");
  }
  if (options.attempt.empty() || options.attempt.size() > kMaxAttemptBytes) {
    return Bad("attempt", absl::StrCat("\"", options.attempt, "\""),
               absl::StrCat("does not have 1 to ", kMaxAttemptBytes, " bytes"));
  }
  if (options.bind_address.empty() && options.interface.empty()) {
    return Bad("bind_address", "\"\"", "and no interface: name where to listen");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> CreateGloo(const GlooOptions& options) {
  NIBBLE_RETURN_IF_ERROR(Check(options));
  if (options.world == 1) return CreateLocal();
  const Deadline deadline = std::chrono::steady_clock::now() + options.connect_timeout;
  absl::StatusOr<Rendezvous> rendezvous =
      Rendezvous::Open(options.rendezvous, options.rank, deadline);
  if (!rendezvous.ok()) return rendezvous.status();
  NIBBLE_RETURN_IF_ERROR(rendezvous->Meet(options.attempt, options.rank, options.world, deadline));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<GlooMesh> mesh,
                          GlooMesh::Connect({.rank = options.rank,
                                             .world = options.world,
                                             .attempt = options.attempt,
                                             .bind_address = options.bind_address,
                                             .interface = options.interface,
                                             .timeout = options.timeout,
                                             .gives_up = options.gives_up},
                                            rendezvous->store(), deadline));
  return std::make_unique<GlooCollective>(options, std::move(mesh));
}

}  // namespace nibble
