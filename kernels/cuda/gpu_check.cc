// nibble-gpu-check: checks that the CUDA backend gives the CPU backend's bits on this card, and
// measures its speed.
//
//   gpu_check [--check] [--bench] [--device N] [--elements N] [--cases N] [--vectors FILE]...
//
// Without --check and --bench both run. --cases: only so many cases of small shapes. Exits with 1
// on any difference, 2 if nothing could be compared.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/bench.h"
#include "kernels/cuda/check_cases.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/instruction_check.h"
#include "kernels/cuda/vector_check.h"

namespace nibble {
namespace {

struct Flags {
  bool check = false;
  bool bench = false;
  int device = 0;
  int64_t elements = 300'000'000;
  int64_t cases = 0;                 // 0: all
  std::vector<std::string> vectors;  // files of worked vectors
};

double Now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Returns the number of differences.
absl::StatusOr<int64_t> CheckInstructions(CudaBackend& cuda) {
  NIBBLE_ASSIGN_OR_RETURN(Buffer device, cuda.memory().Allocate(sizeof(gpu::InstructionCheck)));
  const double start = Now();
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(gpu::LaunchInstructionCheck(device.data<gpu::InstructionCheck>(), cuda.stream()),
               "LaunchInstructionCheck"));
  gpu::InstructionCheck result;
  NIBBLE_RETURN_IF_ERROR(cuda.memory().CopyOut(&result, device.data(), sizeof(result)));
  constexpr const char* kNames[] = {"round to BF16",  "E4M3 scale code", "E2M1 nearest",
                                    "one-byte pairs", "division by 6",   "E2M1 stochastic"};
  int64_t differences = 0;
  std::printf("instruction sequences against the formulas, on the card (%.1f s):\n", Now() - start);
  for (int kind = 0; kind < gpu::InstructionCheck::kKinds; ++kind) {
    std::printf("  %-18s %14llu values %10llu differences", kNames[kind], result.compared[kind],
                result.different[kind]);
    if (result.different[kind] != 0) std::printf(", such as x bits %08x", result.example[kind]);
    std::printf("\n");
    differences += static_cast<int64_t>(result.different[kind]);
  }
  return differences;
}

void PrintTallies(const char* title, const std::map<std::string, CheckTally>& tallies) {
  std::printf("%-72s %6s %14s %12s\n", title, "cases", "elements", "differences");
  for (const auto& [name, tally] : tallies) {
    std::printf("  %-70s %6ld %14ld %12ld\n", name.c_str(), static_cast<long>(tally.cases),
                static_cast<long>(tally.elements), static_cast<long>(tally.differences));
  }
}

// Large matrices through the tile kernels, with the copies that training makes.
absl::Status CheckLarge(Checker& checker) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CheckCase check;
    check.seed = seed;
    check.rows = 4096;
    check.cols = seed % 2 ? 3072 : 1920;
    check.stride = check.cols;
    check.bf16 = seed != 8;
    for (CheckCopy* copy : {&check.row, &check.column}) {
      copy->wanted = true;
      copy->spec.block = seed == 7 || seed == 8 ? BlockShape{16, 16} : BlockShape{1, 16};
      copy->spec.rounding = seed % 4 < 2 ? Rounding::kStochastic : Rounding::kNearest;
      if (copy == &check.column && seed < 7) copy->spec.hadamard.size = 16;
      copy->emulated = seed % 3 == 0 ? EmulatedLayout::kSource : EmulatedLayout::kNone;
      copy->statistics = seed == 2;
      copy->random = {seed, copy == &check.column ? 1u : 0u, 7};
    }
    NIBBLE_RETURN_IF_ERROR(checker.Run(check));
  }
  return absl::OkStatus();
}

// The same in every other format and block: as training makes them, with transforms, stochastic,
// and with statistics of bad numbers.
absl::Status CheckLargeFormats(Checker& checker) {
  enum Kind : uint64_t { kPlain, kEmulated, kTransformed, kStochastic, kStatistics, kKinds };
  for (const FormatInfo& format : AllFormats()) {
    if (format.format == Format::kNvfp4) continue;
    for (const BlockShape block : format.shapes) {
      for (uint64_t kind = 0; kind < kKinds; ++kind) {
        CheckCase check;
        check.seed = kind + 1;
        check.temper = kind == kStatistics ? Temper::kBadNumbers : Temper::kNormal;
        check.rows = 2048;
        check.cols = kind % 2 ? 1920 : 3072;
        check.stride = check.cols;
        check.bf16 = kind != kEmulated && kind != kStochastic;
        for (CheckCopy* copy : {&check.row, &check.column}) {
          const bool column = copy == &check.column;
          copy->wanted = true;
          copy->spec = OperandSpec::Of(format.format);
          copy->spec.block = block;
          copy->spec.rounding = kind == kStochastic ? Rounding::kStochastic : Rounding::kNearest;
          if (kind == kTransformed && column && block.rows == 1) copy->spec.hadamard.size = 32;
          copy->emulated = kind == kEmulated || kind == kStochastic ? EmulatedLayout::kSource
                                                                    : EmulatedLayout::kNone;
          copy->statistics = kind == kStatistics;
          copy->random = {check.seed, column ? 1u : 0u, 7};
        }
        NIBBLE_RETURN_IF_ERROR(checker.Run(check));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Check(const Flags& flags, CpuBackend& cpu, CudaBackend& cuda) {
  int64_t differences = 0;
  if (flags.cases == 0) {
    NIBBLE_ASSIGN_OR_RETURN(differences, CheckInstructions(cuda));
  }
  for (const std::string& path : flags.vectors) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t found, CheckVectors(path, cpu, cuda));
    differences += found;
  }
  const double start = Now();
  Checker checker(cpu, cuda);
  // Small shapes first: failures there are easier to analyse.
  uint64_t seed = 1;
  const uint64_t small = flags.cases == 0 ? 1500 : static_cast<uint64_t>(flags.cases);
  for (; seed <= small; ++seed) NIBBLE_RETURN_IF_ERROR(checker.Run(RandomCase(seed, 400)));
  if (flags.cases == 0) {
    NIBBLE_RETURN_IF_ERROR(CheckLarge(checker));
    NIBBLE_RETURN_IF_ERROR(CheckLargeFormats(checker));
    for (; checker.elements() < flags.elements; ++seed) {
      NIBBLE_RETURN_IF_ERROR(checker.Run(RandomCase(seed, 2000)));
    }
  }
  PrintTallies("by kernels", checker.by_path());
  PrintTallies("by input", checker.by_temper());
  std::printf("%s against %s: %ld elements compared in %.1f s, %ld differences\n",
              cuda.Name().c_str(), cpu.Name().c_str(), static_cast<long>(checker.elements()),
              Now() - start, static_cast<long>(checker.differences()));
  return differences + checker.differences();
}

bool Parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--check") {
      flags.check = true;
    } else if (arg == "--bench") {
      flags.bench = true;
    } else if (arg == "--device" && i + 1 < argc) {
      flags.device = std::atoi(argv[++i]);
    } else if (arg == "--vectors" && i + 1 < argc) {
      flags.vectors.push_back(argv[++i]);
    } else if (arg == "--elements" && i + 1 < argc) {
      flags.elements = std::atoll(argv[++i]);
    } else if (arg == "--cases" && i + 1 < argc) {
      flags.cases = std::atoll(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: %s [--check] [--bench] [--device N] [--elements N] [--cases N] "
                   "[--vectors FILE]...\n",
                   argv[0]);
      return false;
    }
  }
  if (!flags.check && !flags.bench) flags.check = flags.bench = true;
  return true;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, flags)) return 2;
  const auto fail = [](const absl::Status& status) {
    std::fprintf(stderr, "gpu_check: %s\n", status.ToString().c_str());
    return 2;
  };
  absl::StatusOr<std::unique_ptr<CpuBackend>> cpu = CpuBackend::Create({});
  if (!cpu.ok()) return fail(cpu.status());
  absl::StatusOr<std::unique_ptr<CudaBackend>> cuda = CudaBackend::Create(flags.device);
  if (!cuda.ok()) return fail(cuda.status());
  int exit_code = 0;
  if (flags.check) {
    const absl::StatusOr<int64_t> differences = Check(flags, **cpu, **cuda);
    if (!differences.ok()) return fail(differences.status());
    if (*differences != 0) exit_code = 1;
  }
  if (flags.bench) {
    (*cuda)->UseNaiveKernelsOnly(false);
    if (absl::Status status = RunBench(**cuda, (*cpu)->pool()); !status.ok()) return fail(status);
  }
  return exit_code;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) { return nibble::Main(argc, argv); }
