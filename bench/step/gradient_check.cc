// gradient_check: gradients of every block of whole models, on the CPU or on a CUDA card, beside
// the FP32 oracle: the same model with FP32 activations and no quantisation, on the CPU.
//
// A block's error is ‖g − oracle‖ / ‖oracle‖ over all of its parameters. Rounding of activations
// and operands makes most of it, on the CPU as on a card. A device passes if no block's error
// exceeds kBound times the CPU's under the same recipe: both round alike and only add in another
// order.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/step/bench_device.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "model/outline.h"
#include "recipe/presets.h"
#include "worker/trainer/model/model.h"

namespace nibble::bench {
namespace {

constexpr double kBound = 1.1;

struct Settings {
  std::vector<std::string> models = {"tiny-hybrid", "tiny-transformer", "tiny-llama", "tiny-gpt2"};
  std::vector<std::string> recipes;
  int64_t batch = 4;
  int64_t sequence = 256;
  std::string device = "cpu";
  int threads = 0;
};

// One micro-batch with documents of random length, on the host.
struct Batch {
  Batch(const Settings& settings, int64_t vocab)
      : rows(settings.batch * settings.sequence), context({.seed = 7, .step = 3}) {
    std::mt19937_64 random(5);
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<int32_t>(row % settings.sequence);
      const bool begins = at == 0 || random() % 61 == 0;
      words.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
      targets.push_back(
          random() % 13 == 0 ? -1 : static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
      documents.push_back(begins ? at : documents.back());
    }
    words.insert(words.end(), targets.begin(), targets.end());
    words.insert(words.end(), documents.begin(), documents.end());
    context.layout = {.sequences = settings.batch, .length = settings.sequence};
    context.batch_tokens = rows;
  }

  int64_t rows;
  std::vector<int32_t> targets, documents;
  std::vector<int32_t> words;  // [3, rows]: tokens, targets, documents
  StepContext context;
};

// Gradients by block: those outside of blocks come last.
using Gradients = std::vector<std::vector<float>>;

absl::StatusOr<Gradients> GradientsOn(const Device& device, const Outline& outline,
                                      const std::string& recipe, DType activations,
                                      const Batch& batch) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Parameters> parameters,
                          Parameters::Create(device, outline, /*seed=*/11));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved,
                          Resolve({.preset = recipe}, outline, batch.rows));
  StepContext context = batch.context;
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                          Model::Create(device, *parameters, resolved,
                                        {.activations = activations,
                                         .sequences = context.layout.sequences,
                                         .length = context.layout.length}));
  Memory& memory = device.memory();
  const size_t bytes = batch.words.size() * sizeof(int32_t);
  NIBBLE_ASSIGN_OR_RETURN(const Buffer words, memory.Allocate(bytes));
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(words.data(), batch.words.data(), bytes));
  NIBBLE_ASSIGN_OR_RETURN(const Buffer loss, memory.Allocate(batch.rows * sizeof(float)));
  context.layout.doc_begin = words.data<int32_t>() + 2 * batch.rows;
  const ModelBatch view = {.tokens = words.data<int32_t>(),
                           .targets = words.data<int32_t>() + batch.rows};
  NIBBLE_RETURN_IF_ERROR(model->BeginStep(context));
  NIBBLE_RETURN_IF_ERROR(
      model->Forward(context, view, 1.0f / static_cast<float>(batch.rows), loss.data<float>()));
  NIBBLE_RETURN_IF_ERROR(model->Backward(context, view));
  NIBBLE_RETURN_IF_ERROR(device.backend.Synchronize());

  Gradients gradients(outline.spec.blocks() + 1);
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const ParamInfo& param = outline.params[i];
    std::vector<float>& of_block = param.block < 0 ? gradients.back() : gradients[param.block];
    const size_t begin = of_block.size();
    of_block.resize(begin + static_cast<size_t>(param.elements()));
    NIBBLE_RETURN_IF_ERROR(memory.CopyOut(of_block.data() + begin,
                                          parameters->gradient(static_cast<int64_t>(i)),
                                          static_cast<size_t>(param.elements()) * sizeof(float)));
  }
  return gradients;
}

double Distance(const std::vector<float>& x, const std::vector<float>& oracle) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < oracle.size(); ++i) {
    const double d = double{x[i]} - double{oracle[i]};
    apart += d * d;
    size += double{oracle[i]} * double{oracle[i]};
  }
  return std::sqrt(apart / size);
}

// Prints a line per block; returns the number of blocks beyond the bound.
absl::StatusOr<int> Check(const Device& cpu, const Device& device, const Settings& settings,
                          const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(name));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec));
  const Batch batch(settings, spec.vocab);
  NIBBLE_ASSIGN_OR_RETURN(const Gradients oracle,
                          GradientsOn(cpu, outline, "bf16", DType::kF32, batch));
  int beyond = 0;
  for (const std::string& recipe : settings.recipes) {
    const absl::StatusOr<Gradients> on_cpu = GradientsOn(cpu, outline, recipe, DType::kBf16, batch);
    if (!on_cpu.ok()) {  // such as blocks that do not divide a layer
      std::printf("%-18s %-16s %s\n", name.c_str(), recipe.c_str(),
                  std::string(on_cpu.status().message()).c_str());
      if (absl::IsInvalidArgument(on_cpu.status())) continue;
      return on_cpu.status();
    }
    NIBBLE_ASSIGN_OR_RETURN(const Gradients on_device,
                            GradientsOn(device, outline, recipe, DType::kBf16, batch));
    for (size_t b = 0; b < oracle.size(); ++b) {
      const bool outside = b + 1 == oracle.size();
      const double expected = Distance((*on_cpu)[b], oracle[b]);
      const double found = Distance(on_device[b], oracle[b]);
      // Not the negation: NaN is beyond every bound.
      const bool within = found <= kBound * expected;
      beyond += within ? 0 : 1;
      std::printf("%-18s %-16s %5s %c %10zu %12.4e %12.4e %8.3f%s\n", name.c_str(), recipe.c_str(),
                  outside ? "-" : std::to_string(b).c_str(), outside ? 'E' : spec.pattern[b],
                  oracle[b].size(), expected, found, found / expected, within ? "" : "  BEYOND");
    }
  }
  return beyond;
}

absl::Status Main(const Settings& settings) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDevice> cpu,
                          BenchDevice::Create("cpu", settings.threads));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDevice> owned,
                          BenchDevice::Create(settings.device, settings.threads));
  std::printf("%s, %s\n", owned->device().backend.Name().c_str(),
              owned->device().gemm.Name().c_str());
  std::printf("%-18s %-16s %7s %10s %12s %12s %8s\n", "model", "recipe", "block", "elements",
              "error, cpu", settings.device.c_str(), "ratio");
  int beyond = 0;
  for (const std::string& model : settings.models) {
    NIBBLE_ASSIGN_OR_RETURN(const int found,
                            Check(cpu->device(), owned->device(), settings, model));
    beyond += found;
  }
  std::printf("blocks beyond %.1f times the CPU's error: %d\n", kBound, beyond);
  if (beyond > 0) return absl::OutOfRangeError("gradients differ by more than rounding");
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::Settings settings;
  for (const auto& preset : nibble::AllPresets()) settings.recipes.push_back(preset.name);
  nibble::CommandLine app("Compares gradients of every block with those of the FP32 oracle",
                          "gradient_check");
  app.Add("--model", settings.models, "Presets (nibble model presets)").ShowDefault();
  app.Add("--recipe", settings.recipes, "Presets (nibble recipe presets)").ShowDefault();
  app.Add("--batch", settings.batch, "Sequences").ShowDefault();
  app.Add("--sequence", settings.sequence, "Tokens per sequence").ShowDefault();
  app.Add("--device", settings.device, "What computes").ShowDefault().OneOf({"cpu", "cuda"});
  app.Add("--threads", settings.threads, "Of the CPU; 0: every processor").ShowDefault();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  const absl::Status status = nibble::bench::Main(settings);
  if (!status.ok()) {
    std::fprintf(stderr, "gradient_check: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
