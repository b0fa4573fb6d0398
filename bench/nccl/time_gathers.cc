// What gathering a block's weights costs, in packed NVFP4 and in BF16: the bytes on the wire, the
// kernels that pack and unpack them and, of codes, expand them for both GEMMs that read them; and
// the gather itself. Kernels and gather each run alone, so that their sum is an upper bound of what
// a step pays. Packing belongs to the update that made the weights; a pass that reads them waits
// for the wire, unpacking and expanding at most, which have to take less than in BF16.
//
// On one card there is nobody to gather with: then the kernels are those of a rank of eight, and
// the wire is counted at the rate of a link alone.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/nccl/check_rank.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "kernels/gemm/gemm.h"

namespace nibble::bench {
namespace {

constexpr int kGatherRounds = 5;
constexpr int kGatherRuns = 20;
constexpr int kRanksOnPaper = 8;
constexpr double kLinkBytesPerSecond = 350e9;
constexpr int64_t kFewTokens = 128;               // a GEMM of them waits for its weight
constexpr int64_t kFlushed = int64_t{256} << 20;  // written between runs: more than a cache holds

struct WeightShape {
  int64_t out, in;
};
struct BlockShapes {
  const char* name;
  std::vector<WeightShape> weights;
};
// Of the transformer of 1.2 billion parameters, and an MLP of the 12B hybrid.
const std::vector<BlockShapes>& Blocks() {
  static const std::vector<BlockShapes>& blocks =
      *new std::vector<BlockShapes>{{"attention of the 1.2B", {{4096, 2048}, {2048, 2048}}},
                                    {"MLP of the 1.2B", {{6144, 2048}, {2048, 6144}}},
                                    {"MLP of the 12B", {{20480, 5120}, {5120, 20480}}}};
  return blocks;
}

OperandSpec WeightSpec() { return {.format = Format::kNvfp4, .block = {16, 16}}; }

struct GatherFigures {
  int64_t message = 0;                      // bytes of a rank
  double pack = 0, unpack = 0, expand = 0;  // seconds of kernels
  std::optional<double> copies, kernels;    // seconds of the gather

  double kernel_seconds() const { return pack + unpack + expand; }
};

class GatherBench {
 public:
  GatherBench(CheckRank& rank, Collective& hosts)
      : rank_(rank), hosts_(hosts), ranks_(rank.world() > 1 ? rank.world() : kRanksOnPaper) {}

  absl::Status Prepare() {
    for (std::unique_ptr<Event>* event : {&begin_, &end_}) {
      NIBBLE_ASSIGN_OR_RETURN(*event, rank_.backend().NewEvent());
    }
    NIBBLE_ASSIGN_OR_RETURN(flushed_, rank_.backend().memory().Allocate(kFlushed));
    if (rank_.world() == 1) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(copies_, NewTimedGroup(rank_, hosts_, TimedExchange::kCopies));
    NIBBLE_ASSIGN_OR_RETURN(kernels_, NewTimedGroup(rank_, hosts_, TimedExchange::kKernels));
    return absl::OkStatus();
  }

  int64_t ranks() const { return ranks_; }

  absl::StatusOr<GatherFigures> Measure(const BlockShapes& block, bool packed) {
    GatherFigures figures;
    for (const WeightShape& weight : block.weights) {
      const int64_t elements = weight.out * weight.in / ranks_;
      figures.message += packed ? elements / 2 + elements / 256 : 2 * elements;
      NIBBLE_RETURN_IF_ERROR(AddWeight(weight, packed, figures));
    }
    NIBBLE_RETURN_IF_ERROR(AddMessages(figures.message, figures));
    if (copies_ != nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(figures.copies, TimeGather(*copies_, figures.message));
      NIBBLE_ASSIGN_OR_RETURN(figures.kernels, TimeGather(*kernels_, figures.message));
    }
    return figures;
  }

 private:
  // Median seconds of `run` in the compute queue, with nothing of it in the cache.
  absl::StatusOr<double> TimeKernels(absl::FunctionRef<absl::Status()> run) {
    Backend& backend = rank_.backend();
    ElementwiseOps& ops = rank_.card().ops().elementwise();
    std::vector<double> seconds;
    for (int i = 0; i <= kGatherRuns; ++i) {
      NIBBLE_RETURN_IF_ERROR(ops.Zero(flushed_.data(), kFlushed));
      NIBBLE_RETURN_IF_ERROR(backend.compute().Record(*begin_));
      NIBBLE_RETURN_IF_ERROR(run());
      NIBBLE_RETURN_IF_ERROR(backend.compute().Record(*end_));
      NIBBLE_ASSIGN_OR_RETURN(const double one, backend.SecondsBetween(*begin_, *end_));
      if (i > 0) seconds.push_back(one);  // the first one warms up
    }
    std::nth_element(seconds.begin(), seconds.begin() + kGatherRuns / 2, seconds.end());
    return seconds[kGatherRuns / 2];
  }

  // What the owner of rows does with them, and both GEMMs of the weight with its codes.
  absl::Status AddWeight(const WeightShape& weight, bool packed, GatherFigures& figures) {
    Backend& backend = rank_.backend();
    CudaDevice& card = rank_.card();
    const int64_t rows = weight.out / ranks_, elements = rows * weight.in;
    NIBBLE_ASSIGN_OR_RETURN(const Buffer masters, Random(elements));
    if (!packed) {
      NIBBLE_ASSIGN_OR_RETURN(const Buffer message,
                              backend.memory().Allocate(static_cast<size_t>(2 * elements)));
      const CopyParts::Part part = {.to = message.data(),
                                    .from = masters.data(),
                                    .elements = elements,
                                    .as = CopyParts::As::kRounded};
      NIBBLE_ASSIGN_OR_RETURN(const double pack, TimeKernels([&] {
                                return card.ops().elementwise().Run(CopyParts{{&part, 1}});
                              }));
      figures.pack += pack;
      return absl::OkStatus();
    }
    const auto quantized = [&](int64_t of_rows, int64_t of_cols, const OperandSpec& spec) {
      return QuantizedTensor::Create(backend.memory(),
                                     {.spec = spec, .rows = of_rows, .cols = of_cols});
    };
    NIBBLE_ASSIGN_OR_RETURN(QuantizedTensor strip, quantized(rows, weight.in, WeightSpec()));
    const ConstMatrix strip_rows = ConstMatrix::Of(masters.data<float>(), rows, weight.in);
    NIBBLE_ASSIGN_OR_RETURN(const Buffer amax, backend.memory().Allocate(sizeof(float)));
    // Once to find the amax, and again with that of the whole weight.
    NIBBLE_ASSIGN_OR_RETURN(
        const double pack, TimeKernels([&] {
          absl::Status status = backend.Quantize({.x = strip_rows, .row = {.out = &strip}});
          status.Update(backend.compute().Copy(
              {.to = amax.data(), .from = &strip.head()->amax, .line_bytes = sizeof(float)}));
          status.Update(backend.Quantize(
              {.x = strip_rows, .row = {.out = &strip, .amax = amax.data<float>()}}));
          return status;
        }));
    figures.pack += pack;
    NIBBLE_ASSIGN_OR_RETURN(const Buffer whole, Random(weight.out * weight.in));
    NIBBLE_ASSIGN_OR_RETURN(const Buffer few, Random(kFewTokens * weight.in));
    NIBBLE_ASSIGN_OR_RETURN(
        const Buffer product,
        backend.memory().Allocate(static_cast<size_t>(2 * kFewTokens * weight.out)));
    NIBBLE_ASSIGN_OR_RETURN(QuantizedTensor codes, quantized(weight.out, weight.in, WeightSpec()));
    NIBBLE_ASSIGN_OR_RETURN(
        QuantizedTensor expanded,
        QuantizedTensor::Create(backend.memory(), {.spec = WeightSpec(),
                                                   .rows = weight.out,
                                                   .cols = weight.in,
                                                   .packed = false,
                                                   .emulated = EmulatedLayout::kSource}));
    NIBBLE_ASSIGN_OR_RETURN(QuantizedTensor x,
                            quantized(kFewTokens, weight.in, {.format = Format::kNvfp4}));
    const ConstMatrix all = ConstMatrix::Of(whole.data<float>(), weight.out, weight.in);
    const ConstMatrix tokens = ConstMatrix::Of(few.data<float>(), kFewTokens, weight.in);
    NIBBLE_RETURN_IF_ERROR(backend.Quantize({.x = all, .row = {.out = &codes}}));
    NIBBLE_RETURN_IF_ERROR(backend.Quantize({.x = tokens, .row = {.out = &x}}));
    NIBBLE_RETURN_IF_ERROR(backend.Quantize({.x = all, .row = {.out = &expanded}}));
    const auto y = MutableMatrix::OfBf16(product.data<uint16_t>(), kFewTokens, weight.out);
    double seconds[2] = {};
    for (const bool of_codes : {false, true}) {
      const GemmRequest request = Fprop(&x, of_codes ? &codes : &expanded, y);
      NIBBLE_RETURN_IF_ERROR(card.gemm().Prepare(request));
      NIBBLE_ASSIGN_OR_RETURN(seconds[of_codes ? 1 : 0],
                              TimeKernels([&] { return card.gemm().Gemm(request); }));
    }
    // Fprop and Dgrad.
    figures.expand += 2 * std::max(0.0, seconds[1] - seconds[0]);
    return absl::OkStatus();
  }

  // All messages to where their parts belong.
  absl::Status AddMessages(int64_t message, GatherFigures& figures) {
    Memory& memory = rank_.backend().memory();
    const auto bytes = static_cast<size_t>(ranks_ * message);
    NIBBLE_ASSIGN_OR_RETURN(const Buffer from, memory.Allocate(bytes));
    NIBBLE_ASSIGN_OR_RETURN(const Buffer to, memory.Allocate(bytes));
    std::vector<CopyParts::Part> parts;
    for (int64_t r = 0; r < ranks_; ++r) {
      for (const int64_t first : {int64_t{0}, message / 32 * 16}) {
        parts.push_back({.to = to.data<char>() + r * message + first,
                         .from = from.data<char>() + r * message + first,
                         .elements = first == 0 ? message / 32 * 16 : message - first});
      }
    }
    NIBBLE_ASSIGN_OR_RETURN(figures.unpack, TimeKernels([&] {
                              return rank_.card().ops().elementwise().Run(CopyParts{parts});
                            }));
    return absl::OkStatus();
  }

  // Median seconds of a gather, of the slowest rank.
  absl::StatusOr<double> TimeGather(RankGroup& group, int64_t message) {
    Backend& backend = rank_.backend();
    NIBBLE_ASSIGN_OR_RETURN(const Buffer all,
                            backend.memory().Allocate(static_cast<size_t>(ranks_ * message)));
    char* const mine = all.data<char>() + rank_.rank() * message;
    std::vector<double> seconds;
    for (int round = 0; round <= kGatherRounds; ++round) {
      NIBBLE_RETURN_IF_ERROR(hosts_.Barrier());
      NIBBLE_RETURN_IF_ERROR(backend.transfers().Record(*begin_));
      for (int i = 0; i < kGatherRuns; ++i) {
        NIBBLE_RETURN_IF_ERROR(group.AllGather(++number_, mine, all.data(), message));
      }
      NIBBLE_RETURN_IF_ERROR(backend.transfers().Record(*end_));
      NIBBLE_ASSIGN_OR_RETURN(const double run, backend.SecondsBetween(*begin_, *end_));
      const uint64_t word[] = {static_cast<uint64_t>(run / kGatherRuns * 1e12)};
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<uint64_t> every, hosts_.ExchangeSmall(word));
      if (round == 0) continue;
      seconds.push_back(static_cast<double>(*std::max_element(every.begin(), every.end())) / 1e12);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kGatherRounds / 2, seconds.end());
    return seconds[kGatherRounds / 2];
  }

  absl::StatusOr<Buffer> Random(int64_t elements) {
    NIBBLE_ASSIGN_OR_RETURN(Buffer values,
                            rank_.backend().memory().Allocate(static_cast<size_t>(elements) * 4));
    NIBBLE_RETURN_IF_ERROR(
        rank_.card().ops().elementwise().Run(FillInitial{.init = Init::kNormal,
                                                         .scale = 0.02,
                                                         .random = {.seed = ++filled_},
                                                         .n = elements,
                                                         .out = values.data<float>()}));
    return values;
  }

  CheckRank& rank_;
  Collective& hosts_;
  const int64_t ranks_;
  std::unique_ptr<Event> begin_, end_;
  Buffer flushed_;
  std::unique_ptr<RankGroup> copies_, kernels_;
  uint64_t number_ = 0, filled_ = 0;
};

absl::Status TimeBlocks(CheckRank& rank) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Collective> hosts, rank.Join("gathers"));
  GatherBench bench(rank, *hosts);
  NIBBLE_RETURN_IF_ERROR(bench.Prepare());
  const auto ms = [](double seconds) { return absl::StrFormat("%.3f", 1e3 * seconds); };
  TextTable table({"gathered", "as", "MB on the wire", "pack ms", "unpack ms", "expand ms",
                   "at 350 GB/s ms", "read ms", "all ms", "copies ms", "GB/s", "kernels ms", "GB/s"});
  std::string verdicts;
  bool good = true;
  for (const BlockShapes& block : Blocks()) {
    double all[2] = {}, read[2] = {}, wire[2] = {};
    for (const bool packed : {false, true}) {
      NIBBLE_ASSIGN_OR_RETURN(const GatherFigures found, bench.Measure(block, packed));
      const auto bytes = static_cast<double>((bench.ranks() - 1) * found.message);
      wire[packed ? 1 : 0] = bytes / kLinkBytesPerSecond;
      all[packed ? 1 : 0] = found.kernel_seconds() + bytes / kLinkBytesPerSecond;
      read[packed ? 1 : 0] = all[packed ? 1 : 0] - found.pack;
      std::vector<std::string> row = {block.name,
                                      packed ? "NVFP4" : "BF16",
                                      absl::StrFormat("%.2f", bytes / 1e6),
                                      ms(found.pack),
                                      ms(found.unpack),
                                      ms(found.expand),
                                      ms(wire[packed ? 1 : 0]),
                                      ms(read[packed ? 1 : 0]),
                                      ms(all[packed ? 1 : 0])};
      for (const std::optional<double>& gather : {found.copies, found.kernels}) {
        row.push_back(gather ? ms(*gather) : "-");
        row.push_back(gather ? absl::StrFormat("%.0f", bytes / *gather / 1e9) : "-");
      }
      table.Add(row);
    }
    const bool less = read[1] < read[0];
    good = good && less;
    absl::StrAppend(&verdicts, block.name, ": ", ms(read[1]), " ms packed, ", ms(read[0]),
                    " ms in BF16, of them ", ms(wire[0]),
                    " ms on the wire: ", less ? "ok" : "FAILED, packed takes no less", "\n");
  }
  NIBBLE_RETURN_IF_ERROR(rank.backend().Synchronize());
  NIBBLE_RETURN_IF_ERROR(hosts->Barrier());
  if (rank.rank() == 0) {
    std::printf("%s: gathers of a rank of %d; read: the wire at 350 GB/s, unpacking and expanding; all: packing, too\n%s%s",
                rank.backend().Name().c_str(), static_cast<int>(bench.ranks()),
                table.Text().c_str(), verdicts.c_str());
    (void)std::fflush(stdout);
  }
  // Every rank times kernels of its own; the verdict is that of rank 0's.
  return good || rank.rank() > 0 ? absl::OkStatus()
                                 : absl::InternalError("packed gathers take no less time");
}

}  // namespace

int TimeGathers(CheckRank& rank) {
  const absl::Status status = TimeBlocks(rank);
  if (status.ok()) return kRankOk;
  Say(rank, status.ToString());
  return kRankFailed;
}

}  // namespace nibble::bench
