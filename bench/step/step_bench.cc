// step_bench: whole training steps of one model under one or more recipes, on this machine's CPU or
// on a CUDA card.
//
// For each recipe: tokens per second (median, minimum, maximum over the steps), achieved GFLOP/s
// next to the GEMM ceiling measured in the same run, peak memory; then one more step with every
// operation timed separately, with GFLOP/s or GB/s and the limit next to it, so that the next thing
// to speed up is visible. Recipes alternate, step by step, so that noise of the machine affects all
// of them alike.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/limits.h"
#include "bench/step/bench_device.h"
#include "bench/step/timed_device.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "model/outline.h"
#include "worker/trainer/comm/collective.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/model/recorded_passes.h"
#include "worker/trainer/optim/sharded_adamw.h"
#include "worker/trainer/optim/step_decision.h"

namespace nibble::bench {
namespace {

struct Settings {
  std::string model = "small-transformer";
  std::vector<std::string> recipes = {"bf16", "nvfp4"};
  ModelSpec spec;
  int64_t batch = 8;
  int64_t sequence = 512;
  int64_t steps = 8;
  std::string device = "cpu";
  int threads = 0;
  bool recompute = false;
  bool recorded = true;
  bool update_copies = true;
  bool operations = true;
};

// One model under one recipe, with its own weights.
class Run {
 public:
  static absl::StatusOr<std::unique_ptr<Run>> Create(const Device& device, const Settings& settings,
                                                     const Outline& outline,
                                                     const std::string& preset) {
    std::unique_ptr<Run> run(new Run(device, settings));
    run->name = preset;
    NIBBLE_ASSIGN_OR_RETURN(run->parameters_, Parameters::Create(device, outline, /*seed=*/1));
    const int64_t tokens = settings.batch * settings.sequence;
    NIBBLE_ASSIGN_OR_RETURN(ResolvedRecipe recipe, Resolve({.preset = preset}, outline, tokens));
    NIBBLE_ASSIGN_OR_RETURN(run->model_, Model::Create(device, *run->parameters_, recipe,
                                                       {.sequences = settings.batch,
                                                        .length = settings.sequence,
                                                        .recompute = settings.recompute}));
    NIBBLE_ASSIGN_OR_RETURN(run->optimizer_,
                            ShardedAdamW::Create(device, *run->parameters_, *run->collective_, {}));
    if (settings.update_copies) run->optimizer_->SetCopies(run->model_->UpdatedCopies());
    NIBBLE_ASSIGN_OR_RETURN(run->decision_, StepDecision::Create(device, *run->collective_));
    std::mt19937 random(1);
    std::vector<int32_t> drawn(2 * tokens);  // tokens, then targets
    for (int32_t& token : drawn) token = static_cast<int32_t>(random() % outline.spec.vocab);
    const size_t bytes = drawn.size() * sizeof(int32_t);
    NIBBLE_ASSIGN_OR_RETURN(run->tokens_, device.memory().Allocate(bytes));
    NIBBLE_RETURN_IF_ERROR(device.memory().CopyIn(run->tokens_.data(), drawn.data(), bytes));
    NIBBLE_ASSIGN_OR_RETURN(run->loss_, device.memory().Allocate(tokens * sizeof(float)));
    return run;
  }

  // Waits until the step has been computed.
  absl::Status Step() {
    const int64_t tokens = settings_.batch * settings_.sequence;
    const StepContext context = {
        .seed = 1,
        .step = step_,
        .layout = {.sequences = settings_.batch, .length = settings_.sequence},
        .batch_tokens = tokens};
    const ModelBatch batch = {.tokens = tokens_.data<int32_t>(),
                              .targets = tokens_.data<int32_t>() + tokens};
    const auto begin = std::chrono::steady_clock::now();
    model_->SetCopiesAreCurrent(settings_.update_copies && step_ > 0);
    NIBBLE_RETURN_IF_ERROR(model_->BeginStep(context));
    const auto passes = [&]() -> absl::Status {
      NIBBLE_RETURN_IF_ERROR(
          model_->Forward(context, batch, 1.0f / static_cast<float>(tokens), loss_.data<float>()));
      return model_->Backward(context, batch);
    };
    NIBBLE_RETURN_IF_ERROR(settings_.recorded ? passes_.Run({}, /*exchanges=*/false, passes)
                                              : passes());
    NIBBLE_RETURN_IF_ERROR(decision_->Clear());
    NIBBLE_RETURN_IF_ERROR(optimizer_->FinishReduce(decision_->mine()));
    NIBBLE_RETURN_IF_ERROR(decision_->Decide(
        /*max_norm=*/1.0f, /*loss_bound=*/std::numeric_limits<double>::infinity(),
        /*norm_bound=*/std::numeric_limits<double>::infinity()));
    NIBBLE_RETURN_IF_ERROR(optimizer_->Update(decision_->on_device(), ++step_, 1e-4));
    NIBBLE_RETURN_IF_ERROR(backend_.Synchronize());
    seconds.push_back(Since(begin));
    return absl::OkStatus();
  }

  std::string name;
  std::vector<double> seconds;

 private:
  Run(const Device& device, const Settings& settings)
      : backend_(device.backend),
        settings_(settings),
        collective_(CreateLocal()),
        passes_(device.backend.compute(), hooks_) {}

  Backend& backend_;
  const Settings& settings_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ShardedAdamW> optimizer_;
  std::unique_ptr<StepDecision> decision_;
  Buffer tokens_;    // [2, tokens]: tokens, targets
  Buffer loss_;      // [tokens]
  PassHooks hooks_;  // none
  RecordedPasses passes_;
  int64_t step_ = 0;
};

void PrintOperations(const std::map<std::string, OpTotals>& totals, double ceiling, double copy) {
  std::vector<std::pair<std::string, OpTotals>> ops(totals.begin(), totals.end());
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double total = 0, over = 0;
  for (const auto& [kind, op] : ops) {
    total += op.seconds;
    const double least = op.flops > 0 ? op.flops / (ceiling * 1e9) : op.bytes / (copy * 1e9);
    over += std::max(0.0, op.seconds - least);
  }
  std::printf("  %-32s %6s %9s %6s %16s %10s\n", "operation", "calls", "ms", "share", "rate",
              "of limit");
  for (const auto& [kind, op] : ops) {
    const bool is_gemm = op.flops > 0;
    const double rate = (is_gemm ? op.flops : op.bytes) / op.seconds / 1e9;
    std::printf("  %-32s %6lld %9.2f %5.1f%% %9.1f %-6s %9.1f%%\n", kind.c_str(),
                static_cast<long long>(op.calls), op.seconds * 1e3, 100 * op.seconds / total, rate,
                is_gemm ? "GF/s" : "GB/s", 100 * rate / (is_gemm ? ceiling : copy));
  }
  std::printf("  %-32s %6s %9.2f\n", "all", "", total * 1e3);
  std::printf("  %-32s %6s %9.2f %5.1f%%\n", "of it above the limits", "", over * 1e3,
              100 * over / total);
}

absl::Status Main(const Settings& settings) {
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(settings.spec));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDevice> owned,
                          BenchDevice::Create(settings.device, settings.threads));
  const Device device = owned->device();
  NIBBLE_ASSIGN_OR_RETURN(const double gemm_rate, owned->GemmRate());
  NIBBLE_ASSIGN_OR_RETURN(const double copy_rate, owned->CopyRate());
  const double ceiling = gemm_rate / 1e9, copy = copy_rate / 1e9;
  const FlopsPerToken flops = CountFlops(outline, settings.sequence);
  const double tokens = static_cast<double>(settings.batch * settings.sequence);
  std::printf("%s, %s\n", device.backend.Name().c_str(), device.gemm.Name().c_str());
  std::printf("%s: %.2f M parameters, %lld sequences of %lld tokens\n", settings.spec.name.c_str(),
              static_cast<double>(outline.parameters()) / 1e6,
              static_cast<long long>(settings.batch), static_cast<long long>(settings.sequence));
  std::printf("limits: bf16 gemm %.0f GFLOP/s, copy %.1f GB/s\n", ceiling, copy);

  std::vector<std::unique_ptr<Run>> runs;
  for (const std::string& recipe : settings.recipes) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Run> run,
                            Run::Create(device, settings, outline, recipe));
    runs.push_back(std::move(run));
  }
  for (int64_t step = 0; step < settings.steps + 2; ++step) {
    for (const std::unique_ptr<Run>& run : runs) {
      NIBBLE_RETURN_IF_ERROR(run->Step());
      if (step < 2) run->seconds.clear();
    }
  }
  for (const std::unique_ptr<Run>& run : runs) {
    const double median = Median(run->seconds);
    std::printf(
        "%-14s %9.1f tok/s (%.1f to %.1f), step %.1f ms, %.0f GFLOP/s = %.1f %% of the "
        "gemm, %.3f of %s\n",
        run->name.c_str(), tokens / median,
        tokens / *std::max_element(run->seconds.begin(), run->seconds.end()),
        tokens / *std::min_element(run->seconds.begin(), run->seconds.end()), median * 1e3,
        flops.training() * tokens / median / 1e9,
        100 * flops.training() * tokens / median / 1e9 / ceiling,
        Median(runs.front()->seconds) / median, runs.front()->name.c_str());
  }
  std::printf("most memory of tensors: %.0f MiB, all recipes together\n",
              static_cast<double>(owned->peak_bytes()) / (1 << 20));
  if (!settings.operations) return absl::OkStatus();

  TimedDevice times(device);
  const Device timed = times.device();
  Settings one_by_one = settings;
  one_by_one.recorded = false;
  runs.clear();
  for (const std::string& recipe : settings.recipes) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Run> run,
                            Run::Create(timed, one_by_one, outline, recipe));
    for (int i = 0; i < 3; ++i) {
      times.Clear();  // only the last step is printed
      NIBBLE_RETURN_IF_ERROR(run->Step());
    }
    std::printf("%s, one step by operation\n", recipe.c_str());
    NIBBLE_ASSIGN_OR_RETURN(const auto totals, times.Totals());
    PrintOperations(totals, ceiling, copy);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::Settings settings;
  nibble::CommandLine app("Times whole training steps, and each operation of one step",
                          "step_bench");
  app.Add("--model", settings.model, "A preset (nibble model presets)").ShowDefault();
  app.Add("--recipe", settings.recipes, "Presets; the others are compared with the first")
      .ShowDefault();
  int64_t layers = 0, d_model = 0, d_ff = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  app.Add("--layers", layers, "Repeats of *- instead of the preset's pattern");
  app.Add("--d-model", d_model, "Overrides the preset's");
  app.Add("--d-ff", d_ff, "Overrides the preset's");
  app.Add("--heads", heads, "Overrides the preset's");
  app.Add("--kv-heads", kv_heads, "Overrides the preset's");
  app.Add("--head-dim", head_dim, "Overrides the preset's");
  app.Add("--vocab", vocab, "Overrides the preset's");
  app.Add("--batch", settings.batch, "Sequences").ShowDefault();
  app.Add("--sequence", settings.sequence, "Tokens per sequence").ShowDefault();
  app.Add("--steps", settings.steps, "Timed steps per recipe").ShowDefault();
  app.Add("--device", settings.device, "What computes").ShowDefault().OneOf({"cpu", "cuda"});
  app.Add("--threads", settings.threads, "0: every processor").ShowDefault();
  app.AddFlag("--recompute", settings.recompute, "Recompute blocks in the backward pass");
  app.AddFlag("!--not-recorded", settings.recorded,
              "Enqueue every operation in every step, although the device could record them");
  app.AddFlag("!--copies-anew", settings.update_copies,
              "Make the working copies of weights in passes of their own, not in the update");
  app.AddFlag("!--no-operations", settings.operations, "Omit the table of operations");
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  const absl::StatusOr<nibble::ModelSpec> preset = nibble::ModelPreset(settings.model);
  absl::Status status = preset.status();
  if (status.ok()) {
    settings.spec = *preset;
    nibble::ModelSpec& spec = settings.spec;
    if (layers > 0) {
      spec.pattern.clear();
      for (int64_t i = 0; i < layers; ++i) spec.pattern += "*-";
    }
    for (const auto& [value, field] :
         {std::pair(d_model, &spec.d_model), std::pair(d_ff, &spec.d_ff),
          std::pair(heads, &spec.heads), std::pair(kv_heads, &spec.kv_heads),
          std::pair(head_dim, &spec.head_dim), std::pair(vocab, &spec.vocab)}) {
      if (value > 0) *field = value;
    }
    status = nibble::bench::Main(settings);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "step_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
