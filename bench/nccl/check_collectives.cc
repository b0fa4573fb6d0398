// Every rank can compute what every other rank puts in, so each checks its own results alone.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/nccl/check_rank.h"
#include "common/status_macros.h"
#include "kernels/cuda/check_data.h"
#include "kernels/cuda/nccl/piece_plan.h"

namespace nibble::bench {
namespace {

// Of sizes far apart, so that the order of additions shows.
float ValueOf(uint64_t seed, int rank, int64_t i) {
  const uint64_t bits =
      Mix(seed + static_cast<uint64_t>(rank) * 1'000'003, static_cast<uint64_t>(i));
  const uint32_t exponent = 110 + static_cast<uint32_t>(bits >> 40) % 30;
  return std::bit_cast<float>((static_cast<uint32_t>(bits) & 0x807fffffu) | exponent << 23);
}

std::vector<float> ValuesOf(uint64_t seed, int rank, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] = ValueOf(seed, rank, first + i);
  return values;
}

// Copy engines and NCCL's kernels in turns, the same on every rank.
Beside BesideOf(uint64_t seed) { return seed % 2 == 0 ? Beside::kComputation : Beside::kNothing; }

class Checks {
 public:
  Checks(CheckRank& rank, Collective& ranks) : rank_(rank), ranks_(ranks) {}

  absl::Status ReduceScatter(uint64_t seed, int64_t count, bool in_place) {
    const int me = rank_.rank();
    std::vector<float> in = ValuesOf(seed, me, 0, count * rank_.world());
    NIBBLE_ASSIGN_OR_RETURN(const Buffer device, rank_.Put(in));
    NIBBLE_ASSIGN_OR_RETURN(
        const Buffer apart,
        rank_.Put(std::vector<float>(static_cast<size_t>(in_place ? 1 : count))));
    float* const out = in_place ? device.data<float>() + me * count : apart.data<float>();
    NIBBLE_RETURN_IF_ERROR(ranks_.ReduceScatter(device.data<float>(), out, count, BesideOf(seed)));
    std::vector<std::vector<float>> slices;
    std::vector<const float*> pointers;
    for (int r = 0; r < rank_.world(); ++r) {
      slices.push_back(ValuesOf(seed, r, me * count, count));
      pointers.push_back(slices.back().data());
    }
    std::vector<float> sum(static_cast<size_t>(count));
    SumInRankOrder(pointers, sum.data(), count);
    NIBBLE_RETURN_IF_ERROR(Compare("ReduceScatter", out, sum));
    if (!in_place) return absl::OkStatus();
    std::copy(sum.begin(), sum.end(), in.begin() + me * count);
    return Compare("the rest of ReduceScatter's input", device.data(), in);
  }

  absl::Status AllGather(uint64_t seed, int64_t bytes, bool in_place) {
    std::vector<uint8_t> all;
    for (int r = 0; r < rank_.world(); ++r) {
      const std::vector<uint8_t> theirs = BytesOf(seed, r, bytes);
      all.insert(all.end(), theirs.begin(), theirs.end());
    }
    const std::vector<uint8_t> mine = BytesOf(seed, rank_.rank(), bytes);
    NIBBLE_ASSIGN_OR_RETURN(const Buffer out, rank_.Put(std::vector<uint8_t>(all.size())));
    NIBBLE_ASSIGN_OR_RETURN(const Buffer apart, rank_.Put(mine));
    const void* in = apart.data();
    if (in_place) {
      char* const own = out.data<char>() + rank_.rank() * bytes;
      NIBBLE_RETURN_IF_ERROR(rank_.backend().memory().CopyIn(own, mine.data(), mine.size()));
      in = own;
    }
    NIBBLE_RETURN_IF_ERROR(ranks_.AllGather(in, out.data(), bytes, BesideOf(seed)));
    return Compare("AllGather", out.data(), all);
  }

  absl::Status Broadcast(uint64_t seed, int64_t bytes, int root) {
    NIBBLE_ASSIGN_OR_RETURN(const Buffer data, rank_.Put(BytesOf(seed, rank_.rank(), bytes)));
    NIBBLE_RETURN_IF_ERROR(ranks_.Broadcast(data.data(), bytes, root));
    return Compare("Broadcast", data.data(), BytesOf(seed, root, bytes));
  }

  template <class T>
  absl::Status AllReduce(uint64_t seed, int64_t count, ReduceElement element, Reduction reduction) {
    std::vector<T> all;
    for (int r = 0; r < rank_.world(); ++r) {
      for (const float x : ValuesOf(seed, r, 0, count)) {
        if constexpr (std::is_integral_v<T>) {
          all.push_back(static_cast<T>(std::bit_cast<uint32_t>(x)) << 31);
        } else {
          all.push_back(static_cast<T>(x) / 3);
        }
      }
    }
    const auto mine = all.begin() + rank_.rank() * count;
    NIBBLE_ASSIGN_OR_RETURN(const Buffer data, rank_.Put(std::vector<T>(mine, mine + count)));
    NIBBLE_RETURN_IF_ERROR(ranks_.AllReduce(data.data<T>(), count, reduction));
    std::vector<T> expected(static_cast<size_t>(count));
    ReduceInRankOrder(all.data(), expected.data(), rank_.world(), count, element, reduction);
    return Compare("AllReduce", data.data(), expected);
  }

  absl::Status Hosts(uint64_t seed) {
    NIBBLE_RETURN_IF_ERROR(ranks_.Barrier());
    const uint64_t mine[] = {seed, static_cast<uint64_t>(rank_.rank())};
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, ranks_.ExchangeSmall(mine));
    for (int r = 0; r < rank_.world(); ++r) {
      if (all[static_cast<size_t>(2 * r)] != seed ||
          all[static_cast<size_t>(2 * r + 1)] != static_cast<uint64_t>(r)) {
        return absl::DataLossError("ExchangeSmall: not what the ranks said");
      }
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<uint8_t> BytesOf(uint64_t seed, int rank, int64_t bytes) {
    const std::vector<float> values = ValuesOf(seed, rank, 0, (bytes + 3) / 4);
    std::vector<uint8_t> result(static_cast<size_t>(bytes));
    std::memcpy(result.data(), values.data(), result.size());
    return result;
  }

  template <class T>
  absl::Status Compare(const char* what, const void* device, const std::vector<T>& expected) {
    NIBBLE_RETURN_IF_ERROR(ranks_.Synchronize());
    std::vector<T> result(expected.size());
    const size_t bytes = result.size() * sizeof(T);
    NIBBLE_RETURN_IF_ERROR(rank_.backend().memory().CopyOut(result.data(), device, bytes));
    for (size_t i = 0; i < result.size(); ++i) {
      if (std::memcmp(&result[i], &expected[i], sizeof(T)) != 0) {
        return absl::DataLossError(absl::StrCat(what, ": element ", i, " of ", result.size(),
                                                " is ", result[i], ", not ", expected[i]));
      }
    }
    return absl::OkStatus();
  }

  CheckRank& rank_;
  Collective& ranks_;
};

// Of all kinds: single elements, odd, around the pieces of a reduce-scatter, and anything between.
int64_t SizeOf(std::mt19937_64& random, int64_t number) {
  constexpr int64_t kFirst[] = {1,
                                2,
                                3,
                                4,
                                31,
                                1023,
                                1024,
                                1025,
                                kLeastPiece - 1,
                                kLeastPiece,
                                kLeastPiece + 1,
                                2 * kLeastPiece,
                                3 * kLeastPiece + 5};
  if (number < static_cast<int64_t>(std::size(kFirst))) return kFirst[number];
  const uint64_t bits = 1 + random() % 23;
  return 1 + static_cast<int64_t>(random() % (uint64_t{1} << bits));
}

}  // namespace

int CheckCollectives(CheckRank& rank, int64_t cases) {
  absl::StatusOr<std::unique_ptr<Collective>> ranks = rank.Connect(NcclSums::kRankOrder);
  if (!ranks.ok()) {
    Say(rank, ranks.status().ToString());
    return kRankFailed;
  }
  if (rank.rank() == 0) Say(rank, (*ranks)->Name());
  Checks checks(rank, **ranks);
  std::mt19937_64 random(rank.seed());
  int64_t done = 0;
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = random();
    const int64_t size = SizeOf(random, i);
    const int64_t small = 1 + size % 10'000;
    const int root = static_cast<int>(i % rank.world());
    const std::pair<const char*, std::function<absl::Status()>> all[] = {
        {"reduce-scatter", [&] { return checks.ReduceScatter(seed, size, false); }},
        {"reduce-scatter in place", [&] { return checks.ReduceScatter(seed, size, true); }},
        {"all-gather", [&] { return checks.AllGather(seed, size, false); }},
        {"all-gather in place", [&] { return checks.AllGather(seed, size, true); }},
        {"broadcast", [&] { return checks.Broadcast(seed, size, root); }},
        {"sum of FP32",
         [&] {
           return checks.AllReduce<float>(seed, small, ReduceElement::kFloat32, Reduction::kSum);
         }},
        {"maximum of FP32",
         [&] {
           return checks.AllReduce<float>(seed, small, ReduceElement::kFloat32, Reduction::kMax);
         }},
        {"sum of FP64",
         [&] {
           return checks.AllReduce<double>(seed, small, ReduceElement::kFloat64, Reduction::kSum);
         }},
        {"sum of int64",
         [&] {
           return checks.AllReduce<int64_t>(seed, small, ReduceElement::kInt64, Reduction::kSum);
         }},
        {"hosts", [&] { return checks.Hosts(seed); }}};
    for (const auto& [name, check] : all) {
      const absl::Status status = check();
      ++done;
      if (status.ok()) continue;
      Say(rank,
          absl::StrCat(name, ", size ", size, ", seed ", rank.seed(), ": ", status.ToString()));
      return kRankFailed;
    }
  }
  Say(rank, absl::StrCat(done, " collectives, every bit as summed by the host in rank order"));
  return kRankOk;
}

}  // namespace nibble::bench
