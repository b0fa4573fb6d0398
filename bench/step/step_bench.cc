// step_bench: whole training steps of one model under one or more recipes, on this machine's CPU or
// on a CUDA card.
//
// For each recipe: tokens per second (median, minimum, maximum over the steps), achieved GFLOP/s
// next to the GEMM ceiling measured in the same run, peak memory; then steps with every operation
// timed separately, with GFLOP/s or GB/s and the limit next to it, so that the next thing to speed
// up is visible, and, alternately with them, steps as they are trained, part by part beside the sum
// of their operations. Recipes alternate, step by step, so that noise of the machine affects all of
// them alike. As in training, the host reads a step's decision while its update runs.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
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
  bool weights_recorded = true;
  bool update_copies = true;
  bool operations = true;
  bool only_limits = false;
};

// "nvfp4", or a preset and fields that override it: "bf16,all=fp8-tensor".
absl::StatusOr<Recipe> RecipeOf(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ',');
  Recipe recipe = {.preset = words.front()};
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> field =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    recipe.set.push_back({.field = field.first, .value = field.second});
  }
  return recipe;
}

// What a step consists of, in this order.
constexpr size_t kParts = 5;
constexpr const char* kPartNames[kParts] = {"weights", "forward", "backward", "decision", "update"};

// Places in the queue of the computation, at the beginning of each step and after each of its
// parts, with what the host and the timed operations had reached there.
class Marks {
 public:
  Marks(Backend& backend, const TimedDevice& timed) : backend_(backend), timed_(timed) {}

  absl::Status Mark() {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, backend_.NewEvent());
    NIBBLE_RETURN_IF_ERROR(backend_.compute().Record(*event));
    marks_.push_back({std::move(event), std::chrono::steady_clock::now(), timed_.operations()});
    return absl::OkStatus();
  }
  // The index of the next one.
  size_t size() const { return marks_.size(); }

  absl::StatusOr<double> Queue(size_t begin, size_t end) const {
    return backend_.SecondsBetween(*marks_[begin].event, *marks_[end].event);
  }
  double Host(size_t begin, size_t end) const {
    return std::chrono::duration<double>(marks_[end].host - marks_[begin].host).count();
  }
  size_t operations(size_t at) const { return marks_[at].operations; }

 private:
  struct Place {
    std::unique_ptr<Event> event;
    std::chrono::steady_clock::time_point host;
    size_t operations;
  };
  Backend& backend_;
  const TimedDevice& timed_;
  std::vector<Place> marks_;
};

// One model under one recipe, with its own weights.
class Run {
 public:
  static absl::StatusOr<std::unique_ptr<Run>> Create(const Device& device, const Settings& settings,
                                                     const Outline& outline,
                                                     const std::string& recipe_text, Marks& marks) {
    std::unique_ptr<Run> run(new Run(device, settings, marks));
    run->name = recipe_text;
    NIBBLE_ASSIGN_OR_RETURN(run->parameters_, Parameters::Create(device, outline, /*seed=*/1));
    const int64_t tokens = settings.batch * settings.sequence;
    NIBBLE_ASSIGN_OR_RETURN(const Recipe wanted, RecipeOf(recipe_text));
    NIBBLE_ASSIGN_OR_RETURN(ResolvedRecipe recipe, Resolve(wanted, outline, tokens));
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

  // Waits for the step's decision. The update may still run. Not `recorded`: every operation is
  // enqueued.
  absl::Status Step(bool recorded) {
    using enum RecordedPasses::Kind;
    const int64_t tokens = settings_.batch * settings_.sequence;
    const StepContext context = {
        .seed = 1,
        .step = step_,
        .layout = {.sequences = settings_.batch, .length = settings_.sequence},
        .batch_tokens = tokens};
    const ModelBatch batch = {.tokens = tokens_.data<int32_t>(),
                              .targets = tokens_.data<int32_t>() + tokens};
    const auto run = [&](bool from_recording, const RecordedPasses::Key& key,
                         absl::FunctionRef<absl::Status()> pass) {
      return recorded && from_recording ? passes_.Run(key, /*exchanges=*/false, pass) : pass();
    };
    starts.push_back(marks_.size());
    NIBBLE_RETURN_IF_ERROR(marks_.Mark());
    const bool current = settings_.update_copies && step_ > 0;
    model_->SetCopiesAreCurrent(current);
    NIBBLE_RETURN_IF_ERROR(run(settings_.weights_recorded, {.kind = kWeights, .current = current},
                               [&] { return model_->BeginStep(context); }));
    NIBBLE_RETURN_IF_ERROR(marks_.Mark());
    NIBBLE_RETURN_IF_ERROR(run(true, {.kind = kForward}, [&] {
      return model_->Forward(context, batch, 1.0f / static_cast<float>(tokens),
                             loss_.data<float>());
    }));
    NIBBLE_RETURN_IF_ERROR(marks_.Mark());
    NIBBLE_RETURN_IF_ERROR(
        run(true, {.kind = kBackward}, [&] { return model_->Backward(context, batch); }));
    NIBBLE_RETURN_IF_ERROR(marks_.Mark());
    NIBBLE_RETURN_IF_ERROR(decision_->Clear());
    NIBBLE_RETURN_IF_ERROR(optimizer_->FinishReduce(decision_->mine()));
    NIBBLE_RETURN_IF_ERROR(decision_->Decide(
        /*max_norm=*/1.0f, /*loss_bound=*/std::numeric_limits<double>::infinity(),
        /*norm_bound=*/std::numeric_limits<double>::infinity()));
    NIBBLE_RETURN_IF_ERROR(marks_.Mark());
    NIBBLE_RETURN_IF_ERROR(optimizer_->Update(decision_->on_device(), ++step_, 1e-4,
                                              [] { return absl::OkStatus(); }));
    NIBBLE_RETURN_IF_ERROR(marks_.Mark());
    return decision_->Read().status();
  }

  // Seconds of a step in the queue, from the end of what was enqueued before it.
  absl::StatusOr<double> SecondsOf(size_t start) const {
    return marks_.Queue(start == 0 ? 0 : start - 1, start + kParts);
  }

  std::string name;
  std::vector<size_t> starts;  // of the steps: in the marks

 private:
  Run(const Device& device, const Settings& settings, Marks& marks)
      : settings_(settings),
        marks_(marks),
        collective_(CreateLocal()),
        passes_(device.backend.compute(), hooks_) {}

  const Settings& settings_;
  Marks& marks_;
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

// `totals`: of `steps` steps; prints their mean.
void PrintOperations(const std::map<std::string, OpTotals>& totals, int64_t steps, double ceiling,
                     double copy) {
  std::vector<std::pair<std::string, OpTotals>> ops(totals.begin(), totals.end());
  for (auto& [kind, op] : ops) {
    op.calls /= steps;
    for (double* sum : {&op.seconds, &op.flops, &op.bytes}) *sum /= static_cast<double>(steps);
  }
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

// Runs a recipe's steps as they are trained and steps whose operations are timed, alternately, and
// prints both by part.
absl::Status CompareWithOperations(const Settings& settings, TimedDevice& times, const Marks& marks,
                                   Run& run, double ceiling, double copy) {
  constexpr size_t kBefore = kParts;  // what the queue waited between two steps
  std::array<std::vector<double>, kParts + 1> queue, operations, host;
  std::vector<double> whole, all_operations;
  std::map<std::string, OpTotals> totals;
  for (int64_t i = 0; i < settings.steps; ++i) {
    NIBBLE_RETURN_IF_ERROR(run.Step(settings.recorded));
    const size_t start = run.starts.back();
    for (size_t part = 0; part < kParts; ++part) {
      NIBBLE_ASSIGN_OR_RETURN(const double seconds, marks.Queue(start + part, start + part + 1));
      queue[part].push_back(seconds);
      host[part].push_back(marks.Host(start + part, start + part + 1));
    }
    NIBBLE_ASSIGN_OR_RETURN(const double before, marks.Queue(start - 1, start));
    NIBBLE_ASSIGN_OR_RETURN(const double seconds, run.SecondsOf(start));
    queue[kBefore].push_back(before);
    host[kBefore].push_back(marks.Host(start - 1, start));
    whole.push_back(seconds);

    times.Measure(true);
    NIBBLE_RETURN_IF_ERROR(run.Step(/*recorded=*/false));
    const size_t timed = run.starts.back();
    double all = 0;
    for (size_t part = 0; part < kParts; ++part) {
      NIBBLE_ASSIGN_OR_RETURN(
          const double of_part,
          times.Seconds(marks.operations(timed + part), marks.operations(timed + part + 1)));
      operations[part].push_back(of_part);
      all += of_part;
    }
    all_operations.push_back(all);
    NIBBLE_RETURN_IF_ERROR(times.AddTo(totals));
    times.Measure(false);
  }
  std::printf("%s, one step by operation, mean of %lld\n", run.name.c_str(),
              static_cast<long long>(settings.steps));
  PrintOperations(totals, settings.steps, ceiling, copy);
  std::printf(
      "%s, steps as trained beside their operations, medians of %lld each, alternately; host: "
      "enqueuing it\n",
      run.name.c_str(), static_cast<long long>(settings.steps));
  std::printf("  %-10s %10s %14s %12s %9s\n", "part", "step ms", "operations ms", "between ms",
              "host ms");
  const auto print = [](const char* name, double step, double sum, const std::string& rest) {
    std::printf("  %-10s %10.3f %14.3f %12.3f %9s\n", name, step * 1e3, sum * 1e3,
                (step - sum) * 1e3, rest.c_str());
  };
  const auto host_ms = [&](size_t part) {
    return absl::StrFormat("%.3f", Median(host[part]) * 1e3);
  };
  print("before", Median(queue[kBefore]), 0, "");
  for (size_t part = 0; part < kParts; ++part) {
    print(kPartNames[part], Median(queue[part]), Median(operations[part]), host_ms(part));
  }
  const double step = Median(whole), sum = Median(all_operations);
  print("all", step, sum, absl::StrFormat("%.2f %%", 100 * (step - sum) / step));
  return absl::OkStatus();
}

absl::Status Main(const Settings& settings) {
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(settings.spec));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDevice> owned,
                          BenchDevice::Create(settings.device, settings.threads));
  TimedDevice times(owned->device());
  const Device device = times.device();
  NIBBLE_ASSIGN_OR_RETURN(const double gemm_rate, owned->GemmRate());
  NIBBLE_ASSIGN_OR_RETURN(const double copy_rate, owned->CopyRate());
  NIBBLE_ASSIGN_OR_RETURN(const double to_host, owned->ToHostRate());
  const double ceiling = gemm_rate / 1e9, copy = copy_rate / 1e9;
  const FlopsPerToken flops = CountFlops(outline, settings.sequence);
  const double tokens = static_cast<double>(settings.batch * settings.sequence);
  std::printf("%s, %s\n", device.backend.Name().c_str(), device.gemm.Name().c_str());
  std::printf("%s: %.2f M parameters, %lld sequences of %lld tokens\n", settings.spec.name.c_str(),
              static_cast<double>(outline.parameters()) / 1e6,
              static_cast<long long>(settings.batch), static_cast<long long>(settings.sequence));
  std::printf("limits: bf16 gemm %.0f GFLOP/s, copy %.1f GB/s, to the host %.1f GB/s\n", ceiling,
              copy, to_host / 1e9);
  if (settings.only_limits) return absl::OkStatus();

  Marks marks(device.backend, times);
  std::vector<std::unique_ptr<Run>> runs;
  for (const std::string& recipe : settings.recipes) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Run> run,
                            Run::Create(device, settings, outline, recipe, marks));
    runs.push_back(std::move(run));
  }
  // The first three steps make what operations need, then what later ones are recorded from: the
  // second is the first that has its working copies from an update.
  constexpr int64_t kWarmUp = 3;
  for (int64_t step = 0; step < settings.steps + kWarmUp; ++step) {
    for (const std::unique_ptr<Run>& run : runs) {
      NIBBLE_RETURN_IF_ERROR(run->Step(settings.recorded));
      if (step < kWarmUp) run->starts.clear();
    }
  }
  std::map<std::string, double> medians;
  for (const std::unique_ptr<Run>& run : runs) {
    std::vector<double> seconds;
    for (const size_t start : run->starts) {
      NIBBLE_ASSIGN_OR_RETURN(const double of_step, run->SecondsOf(start));
      seconds.push_back(of_step);
    }
    const double median = medians[run->name] = Median(seconds);
    std::printf(
        "%-14s %9.1f tok/s (%.1f to %.1f), step %.1f ms, %.0f GFLOP/s = %.1f %% of the "
        "gemm, %.3f of %s\n",
        run->name.c_str(), tokens / median,
        tokens / *std::max_element(seconds.begin(), seconds.end()),
        tokens / *std::min_element(seconds.begin(), seconds.end()), median * 1e3,
        flops.training() * tokens / median / 1e9,
        100 * flops.training() * tokens / median / 1e9 / ceiling,
        medians[runs.front()->name] / median, runs.front()->name.c_str());
  }
  std::printf("most memory of tensors: %.0f MiB, all recipes together\n",
              static_cast<double>(owned->peak_bytes()) / (1 << 20));
  if (!settings.operations) return absl::OkStatus();

  for (const std::unique_ptr<Run>& run : runs) {
    NIBBLE_RETURN_IF_ERROR(CompareWithOperations(settings, times, marks, *run, ceiling, copy));
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
  app.Add("--recipe", settings.recipes,
          "Presets, or PRESET,FIELD=VALUE,...; the others are compared with the first")
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
  app.AddFlag("!--weights-not-recorded", settings.weights_recorded,
              "Enqueue every operation of the weights, although the passes are recorded");
  app.AddFlag("--limits", settings.only_limits, "Print the limits and end");
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
