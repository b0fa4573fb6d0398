#include "job/job_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "job/job_fields.h"
#include "job/recipe_check.h"
#include "job/schedule.h"

namespace nibble {
namespace {

constexpr int64_t kByteVocabulary = 257;  // every byte value, and the end of a document
constexpr int64_t kMostBlendParts = 100'000;
constexpr size_t kMostLabel = 32;  // the limit of a token shard's header

bool Sound(const Problems& problems, std::initializer_list<std::string_view> paths) {
  for (const std::string_view path : paths) {
    if (!problems.Sound(path)) return false;
  }
  return true;
}

void CheckModel(const JobSpec& spec, Problems& problems) {
  if (!problems.Sound("model")) return;
  const absl::Status status = Validate(spec.model);
  if (status.ok()) return;
  const std::string message(status.message());
  const size_t end = message.find(": ");
  if (end == std::string::npos) {
    problems.Add("model", message);
  } else {
    problems.Add(absl::StrCat("model.", message.substr(0, end)),
                 std::string_view(message).substr(end + 2));
  }
}

void CheckInit(const JobSpec& spec, Problems& problems) {
  if (!problems.Sound("init_from")) return;
  const InitSpec& init = spec.init_from;
  if (!init.job.empty() && !init.path.empty()) {
    problems.Add("init_from.path", "cannot be combined with init_from.job");
  }
  if (init.step != -1 && !init.any()) {
    problems.Add("init_from.step",
                 absl::StrCat(init.step, " needs init_from.job or init_from.path"));
  }
}

void CheckBatch(const JobSpec& spec, Problems& problems) {
  const TrainingSpec& training = spec.training;
  const int64_t ranks = spec.resources.ranks;
  if (!Sound(problems, {"training.batch", "resources.ranks"})) return;
  if (training.batch % ranks != 0) {
    problems.Add(
        "training.batch",
        absl::StrCat(training.batch, " is not a multiple of resources.ranks, which is ", ranks));
    return;
  }
  if (!problems.Sound("training.micro_batch") || training.micro_batch == 0) return;
  const int64_t share = training.batch / ranks;
  if (share % training.micro_batch != 0) {
    problems.Add("training.micro_batch", absl::StrCat(training.micro_batch, " does not divide ",
                                                      share, ", a rank's share of training.batch"));
  }
}

void CheckProducts(const JobSpec& spec, Problems& problems) {
  if (!Sound(problems, {"training.products", "resources.device"})) return;
  if (spec.training.products != JobProducts::kNative || spec.resources.device != JobDevice::kCpu) {
    return;
  }
  problems.Add("training.products",
               "native needs resources.device: cuda; a CPU emulates every format");
}

void CheckCollectives(const JobSpec& spec, Problems& problems) {
  if (!Sound(problems, {"resources.device", "resources.collectives", "resources.reduction",
                        "resources.exchange"})) {
    return;
  }
  const ResourceSpec& resources = spec.resources;
  const bool on_cpu = resources.device == JobDevice::kCpu;
  if (on_cpu && resources.collectives != JobCollectives::kAuto) {
    problems.Add("resources.collectives",
                 absl::StrCat(std::string(ChoiceName(resources.collectives)),
                              " needs resources.device: cuda; ranks on CPUs exchange over TCP"));
  }
  if (resources.exchange == JobExchange::kCopies) {
    if (on_cpu) {
      problems.Add("resources.exchange", "copies needs resources.device: cuda");
    } else if (resources.collectives == JobCollectives::kStaged) {
      problems.Add("resources.exchange",
                   "copies cannot be combined with resources.collectives: staged");
    } else if (resources.reduction == JobReduction::kNccl) {
      problems.Add("resources.exchange",
                   "copies cannot be combined with resources.reduction: nccl");
    }
  }
  if (resources.reduction != JobReduction::kNccl) return;
  if (on_cpu) {
    problems.Add("resources.reduction", "nccl needs resources.device: cuda");
  } else if (resources.collectives == JobCollectives::kStaged) {
    problems.Add("resources.reduction",
                 "nccl cannot be combined with resources.collectives: staged");
  }
}

void CheckElasticity(const JobSpec& spec, Problems& problems) {
  const ResourceSpec& resources = spec.resources;
  if (!Sound(problems, {"training.batch", "training.micro_batch", "resources"})) return;
  const bool ranged = resources.min_ranks != 0 || resources.max_ranks != 0;
  if (ranged && !resources.allowed_ranks.empty()) {
    problems.Add("resources.allowed_ranks", "cannot be combined with min_ranks and max_ranks");
    return;
  }
  const std::vector<int64_t> shared =
      RanksThatShare(spec.training, 1, std::numeric_limits<int64_t>::max());
  for (size_t i = 0; i < resources.allowed_ranks.size(); ++i) {
    const std::string path = absl::StrCat("resources.allowed_ranks[", i, "]");
    const int64_t ranks = resources.allowed_ranks[i];
    if (i > 0 && ranks <= resources.allowed_ranks[i - 1]) {
      problems.Add(path, absl::StrCat(ranks, " is not above ", resources.allowed_ranks[i - 1],
                                      ", the entry before it"));
    } else if (!std::binary_search(shared.begin(), shared.end(), ranks)) {
      problems.Add(path, absl::StrCat(ranks, " does not divide the batch of ", spec.training.batch,
                                      " evenly; allowed: ", absl::StrJoin(shared, ", ")));
    }
  }
  if (!ranged) return;
  const int64_t least = resources.min_ranks == 0 ? resources.ranks : resources.min_ranks;
  const int64_t most = resources.max_ranks == 0 ? resources.ranks : resources.max_ranks;
  const std::vector<int64_t> allowed = AllowedRanks(spec);
  const char* const path = resources.min_ranks == 0 ? "resources.max_ranks" : "resources.min_ranks";
  if (allowed.empty()) {
    problems.Add(path, absl::StrCat("no number of ranks from ", least, " to ", most,
                                    " divides the batch of ", spec.training.batch,
                                    " evenly; allowed: ", absl::StrJoin(shared, ", ")));
  } else if (static_cast<int64_t>(allowed.size()) > kMaxAllowedWorlds) {
    problems.Add(path,
                 absl::StrCat(allowed.size(), " numbers of ranks from ", least, " to ", most,
                              " divide the batch; at most ", kMaxAllowedWorlds, " are allowed"));
  }
}

void CheckEarlyStop(const JobSpec& spec, Problems& problems) {
  if (!Sound(problems, {"early_stop", "training.validate_every"})) return;
  if (spec.early_stop.patience > 0 && spec.training.validate_every == 0) {
    problems.Add("early_stop.patience",
                 absl::StrCat(spec.early_stop.patience,
                              " needs validations, but training.validate_every is 0 or there is "
                              "nothing to validate on"));
  }
}

// Operands are judged where they are sampled.
void CheckGuards(const JobSpec& spec, Problems& problems) {
  if (!problems.Sound("metrics.precision_every") || spec.metrics.precision_every > 0) return;
  const GuardSpec& guards = spec.guards;
  const std::pair<const char*, OperandPolicy> rules[] = {
      {"guards.relative_error", guards.relative_error},
      {"guards.underflow", guards.underflow},
      {"guards.clipped", guards.clipped}};
  for (const auto& [path, policy] : rules) {
    if (policy == OperandPolicy::kOff || policy == OperandPolicy::kObserve) continue;
    if (!problems.Sound(path)) continue;
    problems.Add(path, absl::StrCat(std::string(ChoiceName(policy)),
                                    " needs metrics.precision_every above 0"));
  }
}

void CheckRestarts(const JobSpec& spec, Problems& problems) {
  const RestartSpec& restarts = spec.restarts;
  if (problems.Sound("restarts") && restarts.max_backoff < restarts.backoff) {
    problems.Add("restarts.max_backoff",
                 absl::StrCat(ValueText(restarts.max_backoff), " is under ",
                              ValueText(restarts.backoff), ", restarts.backoff"));
  }
}

void CheckSequence(const JobSpec& spec, Problems& problems) {
  if (!Sound(problems, {"data.sequence", "model"})) return;
  if (spec.model.positions == Positions::kLearned &&
      spec.data.sequence > spec.model.max_positions) {
    problems.Add("data.sequence",
                 absl::StrCat(spec.data.sequence, " is over the model's max_positions, ",
                              spec.model.max_positions));
  }
}

// The tokenizer of the data is only known where the data is read.
void CheckTokenizer(const JobSpec& spec, Problems& problems) {
  const DataSpec& data = spec.data;
  if (!Sound(problems, {"data.tokenizer", "data.tokenizer_model", "data.tokenizer_label"})) return;
  const std::string name(ChoiceName(data.tokenizer));
  const bool of_a_file = data.tokenizer == JobTokenizer::kSentencePiece ||
                         data.tokenizer == JobTokenizer::kHuggingFace;
  if (of_a_file && data.tokenizer_model.empty()) {
    problems.Add("data.tokenizer_model", absl::StrCat("missing; data.tokenizer is ", name));
  }
  const bool bytes = data.tokenizer == JobTokenizer::kBytes;
  if (bytes && !data.tokenizer_model.empty()) {
    problems.Add("data.tokenizer_model",
                 absl::StrCat("'", data.tokenizer_model, "' is not used: data.tokenizer is bytes"));
  }
  const std::string& label = data.tokenizer_label;
  if (label.size() > kMostLabel || !std::all_of(label.begin(), label.end(), [](unsigned char c) {
        return absl::ascii_isprint(c);
      })) {
    problems.Add("data.tokenizer_label", absl::StrCat("'", label, "' is not at most ", kMostLabel,
                                                      " printable ASCII characters"));
  }
  if (bytes && !label.empty() && label != name) {
    problems.Add("data.tokenizer_label",
                 absl::StrCat("'", label, "' does not match data.tokenizer, which is bytes"));
  }
  if (bytes && Sound(problems, {"model"}) && spec.model.vocab < kByteVocabulary) {
    problems.Add("model.vocab", absl::StrCat(spec.model.vocab, " is under ", kByteVocabulary,
                                             ", the tokens of data.tokenizer bytes"));
  }
}

void CheckData(const JobSpec& spec, Problems& problems) {
  if (problems.Sound("data.train")) {
    int64_t parts = 0;
    for (const TrainingSource& source : spec.data.train) parts += source.weight;
    if (parts > kMostBlendParts) {
      problems.Add("data.train",
                   absl::StrCat("the weights add up to ", parts, ", over ", kMostBlendParts));
    }
  }
  for (size_t i = 0; i < spec.data.phases.size(); ++i) {
    const std::string path = absl::StrCat("data.phases[", i, "].weights");
    if (!Sound(problems, {path, "data.train"})) continue;
    const std::vector<int64_t>& weights = spec.data.phases[i].weights;
    if (weights.size() != spec.data.train.size()) {
      problems.Add(path, absl::StrCat(weights.size(), " weights for the ", spec.data.train.size(),
                                      " entries of data.train"));
      continue;
    }
    int64_t parts = 0;
    for (const int64_t weight : weights) parts += weight;
    if (parts == 0 || parts > kMostBlendParts) {
      problems.Add(
          path, absl::StrCat("the weights add up to ", parts, "; allowed: 1 to ", kMostBlendParts));
    }
  }
  for (size_t i = 0; i < spec.data.train.size() && !spec.data.phases.empty(); ++i) {
    bool used = false;
    for (const DataPhase& phase : spec.data.phases) {
      used |= i >= phase.weights.size() || phase.weights[i] > 0;
    }
    if (!used) {
      problems.Add(absl::StrCat("data.train[", i, "]"), "has weight 0 in every phase");
    }
  }
  CheckTokenizer(spec, problems);
  std::set<std::string> names;
  for (size_t i = 0; i < spec.data.validation.size(); ++i) {
    const std::string path = absl::StrCat("data.validation[", i, "].name");
    const std::string& name = spec.data.validation[i].name;
    if (!names.insert(name).second && problems.Sound(path)) {
      problems.Add(path, absl::StrCat("'", name, "' is already the name of an earlier entry"));
    }
  }
  if (Sound(problems, {"data.validation", "data.validation_fraction", "training.validate_every"}) &&
      spec.training.validate_every > 0 && spec.data.validation.empty() &&
      spec.data.validation_fraction == 0) {
    problems.Add("training.validate_every",
                 absl::StrCat(spec.training.validate_every,
                              " needs validation data, but data.validation is empty and "
                              "data.validation_fraction is 0"));
  }
}

void CheckStop(const JobSpec& spec, Problems& problems) {
  if (!Sound(problems, {"training.steps", "training.stop_at"})) return;
  if (spec.training.stop_at > spec.training.steps) {
    problems.Add("training.stop_at", absl::StrCat(spec.training.stop_at, " is over ",
                                                  spec.training.steps, ", training.steps"));
  }
}

void CheckOptimizer(const JobSpec& spec, Problems& problems) {
  const OptimizerSpec& optimizer = spec.optimizer;
  if (Sound(problems, {"optimizer.lr", "optimizer.final_lr"}) &&
      optimizer.final_lr > optimizer.lr) {
    problems.Add("optimizer.final_lr", absl::StrCat(ValueText(optimizer.final_lr), " is over ",
                                                    ValueText(optimizer.lr), ", optimizer.lr"));
  }
  if (problems.Sound("optimizer.clip_norm") && optimizer.clip_norm != 0) {
    CheckRange(optimizer.clip_norm, "optimizer.clip_norm", kClipNorm, problems);
  }
  if (!Sound(problems, {"optimizer.schedule", "optimizer.warmup_steps", "optimizer.decay_fraction",
                        "training.steps"})) {
    return;
  }
  const int64_t steps = spec.training.steps;
  const int64_t room =
      optimizer.schedule == LrSchedule::kWsd ? DecayFirstStep(optimizer, steps) : steps;
  if (optimizer.warmup_steps > room) {
    problems.Add("optimizer.warmup_steps",
                 absl::StrCat(optimizer.warmup_steps, " is over ", room, ", the steps",
                              room == steps ? " of the run" : " before the decay"));
  }
}

}  // namespace

void CheckJob(const JobSpec& spec, Problems& problems) {
  CheckRecord(JobRecord(), spec, "", problems);
  CheckModel(spec, problems);
  CheckInit(spec, problems);
  CheckBatch(spec, problems);
  CheckProducts(spec, problems);
  CheckCollectives(spec, problems);
  CheckElasticity(spec, problems);
  CheckRestarts(spec, problems);
  CheckEarlyStop(spec, problems);
  CheckGuards(spec, problems);
  CheckSequence(spec, problems);
  CheckData(spec, problems);
  CheckStop(spec, problems);
  CheckOptimizer(spec, problems);
  CheckRecipe(spec, problems);
}

}  // namespace nibble
