// gather_bench: the bytes of the weights that a rank sends to each other one in one step at levels
// optimizer and gradients (level weights sends them for each pass), under every preset: the
// messages of the trainer, by what they carry, beside the same weights in BF16.
//
// The ranks are threads on the CPU, which gather once and compute nothing.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/step/bench_device.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "model/outline.h"
#include "recipe/presets.h"
#include "worker/trainer/comm/thread_group_testing.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/optim/sharded_adamw.h"
#include "worker/trainer/optim/weight_gathers.h"

namespace nibble::bench {
namespace {

struct GatherSettings {
  std::string model = "small-transformer";
  int64_t ranks = 2;
  int64_t sequence = 128;
};

// What this rank sends, with every part gathered once.
absl::StatusOr<GatheredBytes> GatherOnce(const Outline& outline, const ResolvedRecipe& recipe,
                                         int64_t sequence, int rank, Collective& collective) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDevice> bench, BenchDevice::Create("cpu", 1));
  const Device device = bench->device();
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Parameters> parameters,
      Parameters::Create(device, outline, /*seed=*/1,
                         {.world = collective.world(), .shards_gradients = true, .rank = rank}));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<ShardedAdamW> optimizer,
                          ShardedAdamW::Create(device, *parameters, collective, {}));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightGathers> gathers,
                          WeightGathers::Create(device, *parameters, *optimizer, collective));
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      Model::Create(device, *parameters, recipe, {.sequences = 1, .length = sequence}));
  NIBBLE_RETURN_IF_ERROR(gathers->SetModel(*model));
  NIBBLE_RETURN_IF_ERROR(gathers->BeginStep(/*packs=*/true, /*statistics=*/false));
  for (int64_t part = -1; part <= outline.spec.blocks(); ++part) {
    NIBBLE_RETURN_IF_ERROR(gathers->BeforeForward(part, /*then_backward=*/false));
  }
  return gathers->bytes();
}

absl::Status PrintPreset(const GatherSettings& settings, const Outline& outline,
                         const std::string& preset) {
  const absl::StatusOr<ResolvedRecipe> recipe =
      Resolve({.preset = preset}, outline, settings.sequence);
  if (!recipe.ok()) {  // such as blocks that do not divide a layer
    std::printf("%-15s %s\n", preset.c_str(), std::string(recipe.status().message()).c_str());
    return absl::OkStatus();
  }
  std::vector<absl::StatusOr<GatheredBytes>> by_rank(static_cast<size_t>(settings.ranks));
  RunRanks(static_cast<int>(settings.ranks), [&](int r, std::unique_ptr<Collective> collective) {
    by_rank[r] = GatherOnce(outline, *recipe, settings.sequence, r, *collective);
  });
  GatheredBytes sum;
  for (const absl::StatusOr<GatheredBytes>& bytes : by_rank) {
    NIBBLE_RETURN_IF_ERROR(bytes.status());
    sum.packed += bytes->packed;
    sum.bf16 += bytes->bf16;
    sum.fp32 += bytes->fp32;
    sum.sent += bytes->sent;
  }
  const auto share = [&](int64_t bytes) {
    return static_cast<double>(bytes) / 1e6 / static_cast<double>(settings.ranks);
  };
  const double in_bf16 = 2 * static_cast<double>(outline.parameters());
  std::printf("%-15s %9.3f %9.3f %9.3f %9.3f %7.3f %8.1f %%\n", preset.c_str(), share(sum.packed),
              share(sum.bf16), share(sum.fp32), share(sum.sent),
              2 * static_cast<double>(sum.sent) / in_bf16,
              100 * static_cast<double>(sum.sent) / in_bf16);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status PrintTable(const GatherSettings& settings) {
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(settings.model));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec));
  std::printf("weights of %s that each of %lld ranks sends to each other one in a step, MB\n",
              settings.model.c_str(), static_cast<long long>(settings.ranks));
  std::printf("%-15s %9s %9s %9s %9s %7s %10s\n", "recipe", "packed", "BF16", "FP32", "message",
              "B/param", "of BF16");
  for (const Preset& preset : AllPresets()) {
    NIBBLE_RETURN_IF_ERROR(PrintPreset(settings, outline, preset.name));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::GatherSettings settings;
  nibble::CommandLine app("Prints the bytes of the weights that ranks send, by preset",
                          "gather_bench");
  app.Add("--model", settings.model, "Preset (nibble model presets)").ShowDefault();
  app.Add("--ranks", settings.ranks, "At least 2").ShowDefault();
  app.Add("--sequence", settings.sequence, "Tokens per sequence").ShowDefault();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  const absl::Status status = nibble::bench::PrintTable(settings);
  if (!status.ok()) {
    std::fprintf(stderr, "gather_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
