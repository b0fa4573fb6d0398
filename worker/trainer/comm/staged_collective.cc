#include "worker/trainer/comm/staged_collective.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<StagedCollective>> StagedCollective::Create(
    Backend& backend, std::unique_ptr<Collective> host, int64_t piece_bytes) {
  if (piece_bytes <= 0 || piece_bytes % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece_bytes: ", piece_bytes, " is not a positive multiple of 8"));
  }
  const int world = host->world();
  std::unique_ptr<StagedCollective> staged(
      new StagedCollective(backend, std::move(host), piece_bytes));
  const auto bytes = static_cast<size_t>(piece_bytes);
  NIBBLE_ASSIGN_OR_RETURN(staged->one_, backend.pinned().Allocate(bytes));
  NIBBLE_ASSIGN_OR_RETURN(staged->all_,
                          backend.pinned().Allocate(bytes * static_cast<size_t>(world)));
  NIBBLE_ASSIGN_OR_RETURN(staged->done_, backend.NewEvent());
  return staged;
}

absl::Status StagedCollective::DoAllGather(const Operation&, const void* in, void* out,
                                           int64_t bytes) {
  Queue& queue = backend_.transfers();
  for (int64_t at = 0; at < bytes; at += piece_bytes_) {
    const int64_t size = std::min(piece_bytes_, bytes - at);
    const auto piece = static_cast<size_t>(size);
    NIBBLE_RETURN_IF_ERROR(queue.CopyOut(one_.data(), static_cast<const char*>(in) + at, piece));
    NIBBLE_RETURN_IF_ERROR(
        queue.Host([this, size] { return host_->AllGather(one_.data(), all_.data(), size); }));
    for (int r = 0; r < world(); ++r) {
      NIBBLE_RETURN_IF_ERROR(queue.CopyIn(static_cast<char*>(out) + r * bytes + at,
                                          all_.data<char>() + r * size, piece));
    }
  }
  return absl::OkStatus();
}

absl::Status StagedCollective::DoReduceScatter(const Operation&, const float* in, float* out,
                                               int64_t count) {
  Queue& queue = backend_.transfers();
  const int64_t most = piece_bytes_ / int64_t{sizeof(float)};
  for (int64_t at = 0; at < count; at += most) {
    const int64_t size = std::min(most, count - at);
    const size_t piece = static_cast<size_t>(size) * sizeof(float);
    for (int r = 0; r < world(); ++r) {
      NIBBLE_RETURN_IF_ERROR(
          queue.CopyOut(all_.data<float>() + r * size, in + r * count + at, piece));
    }
    NIBBLE_RETURN_IF_ERROR(queue.Host([this, size] {
      return host_->ReduceScatter(all_.data<float>(), one_.data<float>(), size);
    }));
    NIBBLE_RETURN_IF_ERROR(queue.CopyIn(out + at, one_.data(), piece));
  }
  return absl::OkStatus();
}

absl::Status StagedCollective::DoAllReduce(const Operation&, void* data, int64_t count,
                                           ReduceElement element, Reduction reduction) {
  Queue& queue = backend_.transfers();
  const int64_t most = piece_bytes_ / 8;
  for (int64_t at = 0; at < count; at += most) {
    const int64_t size = std::min(most, count - at);
    const int64_t bytes = size * ReduceElementBytes(element);
    char* from = static_cast<char*>(data) + at * ReduceElementBytes(element);
    NIBBLE_RETURN_IF_ERROR(queue.CopyOut(one_.data(), from, static_cast<size_t>(bytes)));
    NIBBLE_RETURN_IF_ERROR(queue.Host([this, size, element, reduction] {
      switch (element) {
        case ReduceElement::kFloat32:
          return host_->AllReduce(one_.data<float>(), size, reduction);
        case ReduceElement::kFloat64:
          return host_->AllReduce(one_.data<double>(), size, reduction);
        case ReduceElement::kInt64:
          break;
      }
      return host_->AllReduce(one_.data<int64_t>(), size, reduction);
    }));
    NIBBLE_RETURN_IF_ERROR(queue.CopyIn(from, one_.data(), static_cast<size_t>(bytes)));
  }
  return absl::OkStatus();
}

absl::Status StagedCollective::DoBroadcast(const Operation&, void* data, int64_t bytes, int root) {
  Queue& queue = backend_.transfers();
  for (int64_t at = 0; at < bytes; at += piece_bytes_) {
    const int64_t size = std::min(piece_bytes_, bytes - at);
    const auto piece = static_cast<size_t>(size);
    char* from = static_cast<char*>(data) + at;
    NIBBLE_RETURN_IF_ERROR(queue.CopyOut(one_.data(), from, piece));
    NIBBLE_RETURN_IF_ERROR(
        queue.Host([this, size, root] { return host_->Broadcast(one_.data(), size, root); }));
    NIBBLE_RETURN_IF_ERROR(queue.CopyIn(from, one_.data(), piece));
  }
  return absl::OkStatus();
}

absl::Status StagedCollective::RunAndWait(std::function<absl::Status()> work) {
  Queue& queue = backend_.transfers();
  NIBBLE_RETURN_IF_ERROR(queue.Host(std::move(work)));
  NIBBLE_RETURN_IF_ERROR(queue.Record(*done_));
  return backend_.Wait(*done_);
}

absl::Status StagedCollective::DoBarrier(const Operation&) {
  return RunAndWait([this] { return host_->Barrier(); });
}

absl::Status StagedCollective::DoExchange(const Operation&, uint64_t* words, int64_t count) {
  return RunAndWait([this, words, count] {
    const uint64_t* mine = words + rank() * count;
    absl::StatusOr<std::vector<uint64_t>> all =
        host_->ExchangeSmall({mine, static_cast<size_t>(count)});
    if (!all.ok()) return all.status();
    std::copy(all->begin(), all->end(), words);
    return absl::OkStatus();
  });
}

}  // namespace nibble
