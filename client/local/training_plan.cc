#include "client/local/training_plan.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/text/quantity.h"
#include "common/text/table.h"
#include "common/text/text.h"
#include "plan/rank_memory.h"
#include "plan/scaling.h"
#include "plan/sharding.h"
#include "plan/units.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/render.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// The flags, read and checked.
struct TrainingSetup {
  std::vector<Sharding> levels;
  ResolvedRecipe recipe;
  MemoryRequest memory;      // its sharding is that of no level in particular
  int64_t device_bytes = 0;  // 0: not given
  CardRates rates;
};

absl::StatusOr<TrainingSetup> ReadTrainingFlags(const Outline& outline, int64_t sequence,
                                                const TrainingFlags& flags) {
  TrainingSetup setup;
  setup.levels.assign(kAllShardings.begin(), kAllShardings.end());
  if (!flags.sharding.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const Sharding level, ParseSharding(flags.sharding));
    setup.levels = {level};
  }
  MemoryRequest& memory = setup.memory;
  memory.batch = {.sequences = flags.batch, .length = sequence, .recompute = flags.recompute};
  memory.hardware.capability = flags.capability == "10.0" ? 100 : 90;
  memory.nodes = flags.nodes;
  memory.cards_per_node = flags.cards_per_node;
  if (flags.nodes == 0) {
    memory.cards_per_node = std::min(flags.ranks, flags.cards_per_node);
    memory.nodes = flags.ranks / memory.cards_per_node;
    if (memory.ranks() != flags.ranks) {
      return absl::InvalidArgumentError(absl::StrCat("ranks: ", flags.ranks,
                                                     " is not a multiple of the cards per node, ",
                                                     flags.cards_per_node));
    }
  }
  if (!flags.device_memory.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(setup.device_bytes, ParseByteCount(flags.device_memory));
  }
  NIBBLE_ASSIGN_OR_RETURN(setup.rates.link, ParseByteRate(flags.link));
  NIBBLE_ASSIGN_OR_RETURN(setup.rates.fabric, ParseByteRate(flags.fabric));
  NIBBLE_ASSIGN_OR_RETURN(setup.rates.flops, ParseFlopRate(flags.rate));
  NIBBLE_RETURN_IF_ERROR(CheckBatch(memory.batch));
  NIBBLE_RETURN_IF_ERROR(FindPreset(flags.recipe).status());
  NIBBLE_ASSIGN_OR_RETURN(setup.recipe,
                          Resolve({.preset = flags.recipe}, outline, memory.batch.tokens()));
  return setup;
}

// ---- Memory ------------------------------------------------------------------------------------

struct LevelMemory {
  Sharding level;
  RankMemory memory;
  // If the card's memory is given: the most sequences of a micro-batch, saved and recomputed, and
  // what makes the plan fit if it does not.
  int64_t largest = 0, largest_recomputed = 0;
  std::string remedy;
};

struct MemoryPart {
  const char* name;  // for people
  const char* key;   // in JSON
  int64_t RankMemory::*bytes;
};
constexpr MemoryPart kMemoryParts[] = {
    {"master weights, FP32", "master", &RankMemory::master},
    {"moments, FP32", "moments", &RankMemory::moments},
    {"gradients, FP32", "gradients", &RankMemory::gradients},
    {"working weights", "working_weights", &RankMemory::working_weights},
    {"gathered blocks", "gathered", &RankMemory::gathered},
    {"activations", "activations", &RankMemory::activations},
    {"scratch", "scratch", &RankMemory::scratch},
    {"exchange buffers", "exchange", &RankMemory::exchange},
};

// What makes a plan fit that does not, in options of the command.
absl::StatusOr<std::string> RemedyOf(const Outline& outline, const TrainingSetup& setup,
                                     const LevelMemory& level) {
  const BatchShape& batch = setup.memory.batch;
  if (level.largest_recomputed >= batch.sequences) return std::string("it fits with --recompute");
  if (level.largest > 0 && !batch.recompute) {
    return absl::StrCat("it fits with --batch ", level.largest);
  }
  if (level.largest_recomputed > 0) {
    return absl::StrCat("it fits with --batch ", level.largest_recomputed, " --recompute");
  }
  MemoryRequest least = setup.memory;
  least.sharding = level.level;
  least.batch.sequences = 1;
  least.batch.recompute = true;
  NIBBLE_ASSIGN_OR_RETURN(const int64_t nodes,
                          FewestNodes(outline, setup.recipe, least, setup.device_bytes));
  if (nodes == 0) return std::string("nor does one sequence with --recompute on 1024 nodes");
  return absl::StrCat("it fits with --batch 1 --recompute on ", nodes * least.cards_per_node,
                      " cards (--nodes ", nodes, ")");
}

absl::StatusOr<LevelMemory> MemoryOfLevel(const Outline& outline, const TrainingSetup& setup,
                                          Sharding sharding) {
  MemoryRequest request = setup.memory;
  request.sharding = sharding;
  LevelMemory level = {.level = sharding};
  NIBBLE_ASSIGN_OR_RETURN(level.memory, PlanRankMemory(outline, setup.recipe, request));
  if (setup.device_bytes == 0) return level;
  for (const bool recompute : {false, true}) {
    request.batch.recompute = recompute;
    NIBBLE_ASSIGN_OR_RETURN((recompute ? level.largest_recomputed : level.largest),
                            LargestBatch(outline, setup.recipe, request, setup.device_bytes));
  }
  if (level.memory.total() > setup.device_bytes) {
    NIBBLE_ASSIGN_OR_RETURN(level.remedy, RemedyOf(outline, setup, level));
  }
  return level;
}

std::string MemoryText(const std::vector<LevelMemory>& levels, const TrainingSetup& setup,
                       const TrainingFlags& flags) {
  const MemoryRequest& request = setup.memory;
  std::string text =
      absl::StrCat("memory per rank, of ", request.ranks(), "; a micro-batch is ",
                   request.batch.sequences, " x ", request.batch.length, " tokens",
                   request.batch.recompute ? ", blocks recomputed" : "", "; recipe ", flags.recipe,
                   " on compute capability ", CapabilityName(request.hardware.capability), "\n");
  // A rank alone shards nothing: all levels are equal.
  const size_t columns = request.ranks() == 1 ? 1 : levels.size();
  std::vector<std::string> heads = {"sharded"};
  for (size_t i = 0; i < columns; ++i) {
    heads.push_back(request.ranks() == 1 ? "nothing" : std::string(ShardingName(levels[i].level)));
  }
  TextTable table(heads);
  const auto row = [&](const std::string& name, auto value) {
    std::vector<std::string> cells = {name};
    for (size_t i = 0; i < columns; ++i) cells.push_back(value(levels[i]));
    table.Add(std::move(cells));
  };
  for (const MemoryPart& part : kMemoryParts) {
    row(part.name, [&](const LevelMemory& level) { return BytesText(level.memory.*part.bytes); });
  }
  row("total", [](const LevelMemory& level) { return BytesText(level.memory.total()); });
  if (setup.device_bytes == 0) return absl::StrCat(text, table.Text());

  row(absl::StrCat("of the card's ", BytesText(setup.device_bytes)), [&](const LevelMemory& level) {
    return absl::StrFormat("%.1f %%", 100 * static_cast<double>(level.memory.total()) /
                                          static_cast<double>(setup.device_bytes));
  });
  row("largest --batch", [](const LevelMemory& level) { return absl::StrCat(level.largest); });
  row("largest, --recompute",
      [](const LevelMemory& level) { return absl::StrCat(level.largest_recomputed); });
  absl::StrAppend(&text, table.Text());
  for (size_t i = 0; i < columns; ++i) {
    const LevelMemory& level = levels[i];
    absl::StrAppend(&text,
                    request.ranks() == 1 ? "one rank" : std::string(ShardingName(level.level)),
                    level.remedy.empty() ? " fits" : " does not fit: ", level.remedy, "\n");
  }
  return text;
}

Json MemoryJson(const LevelMemory& level, const TrainingSetup& setup) {
  Json json;
  for (const MemoryPart& part : kMemoryParts) json[part.key] = level.memory.*part.bytes;
  json["total"] = level.memory.total();
  if (setup.device_bytes == 0) return json;
  json["fits"] = level.memory.total() <= setup.device_bytes;
  json["largest_batch"] = level.largest;
  json["largest_batch_recomputed"] = level.largest_recomputed;
  if (!level.remedy.empty()) json["remedy"] = level.remedy;
  return json;
}

// ---- Steps -------------------------------------------------------------------------------------

struct ScalingRow {
  int64_t nodes;
  StepOnPaper packed, bf16;
};

std::vector<ScalingRow> ScalingOf(const std::vector<Unit>& units, const TrainingSetup& setup,
                                  const TrainingFlags& flags, Sharding sharding) {
  std::vector<ScalingRow> rows;
  for (const int64_t nodes : NodesUpTo(flags.nodes)) {
    StepRequest request = {.sharding = sharding,
                           .nodes = nodes,
                           .cards_per_node = setup.memory.cards_per_node,
                           .batch = setup.memory.batch,
                           .micro_batches = flags.micro_batches,
                           .rates = setup.rates};
    ScalingRow row = {.nodes = nodes, .packed = PlanStep(units, request)};
    request.form = GatherForm::kBf16;
    row.bf16 = PlanStep(units, request);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string ScalingText(const std::vector<ScalingRow>& rows, const TrainingSetup& setup,
                        const TrainingFlags& flags, Sharding sharding) {
  const auto bytes = [](double value) { return BytesText(static_cast<int64_t>(value + 0.5)); };
  const auto ms = [](double seconds) { return absl::StrFormat("%.1f", 1e3 * seconds); };
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  TextTable table({"cards", "gradients: link", "fabric", "gathers: link", "fabric", "step ms",
                   "exposed", "efficiency", "bf16: link", "fabric", "step ms", "efficiency"});
  for (const ScalingRow& row : rows) {
    const StepOnPaper &packed = row.packed, &bf16 = row.bf16;
    table.Add({absl::StrCat(row.nodes * setup.memory.cards_per_node), bytes(packed.reduced.node),
               bytes(packed.reduced.fabric), bytes(packed.gathered.node),
               bytes(packed.gathered.fabric), ms(packed.time.step), ms(packed.time.exposed()),
               percent(packed.time.efficiency()), bytes(bf16.gathered.node),
               bytes(bf16.gathered.fabric), ms(bf16.time.step), percent(bf16.time.efficiency())});
  }
  return absl::StrCat("\nsteps with level ", std::string(ShardingName(sharding)),
                      " sharded; per card ", flags.micro_batches,
                      flags.micro_batches == 1 ? " micro-batch of " : " micro-batches of ",
                      setup.memory.batch.sequences, " x ", setup.memory.batch.length, " tokens, ",
                      ms(rows.front().packed.time.compute), " ms of computation at ", flags.rate,
                      ", link ", flags.link, ", fabric ", flags.fabric, "\n", table.Text());
}

Json StepJson(const StepOnPaper& step) {
  const auto whole = [](double value) { return static_cast<int64_t>(value + 0.5); };
  return {{"gradient_link_bytes", whole(step.reduced.node)},
          {"gradient_fabric_bytes", whole(step.reduced.fabric)},
          {"gather_link_bytes", whole(step.gathered.node)},
          {"gather_fabric_bytes", whole(step.gathered.fabric)},
          {"compute_seconds", step.time.compute},
          {"step_seconds", step.time.step},
          {"exposed_seconds", step.time.exposed()},
          {"efficiency", step.time.efficiency()}};
}

Json ScalingJson(const std::vector<ScalingRow>& rows, const TrainingSetup& setup) {
  Json json = Json::array();
  for (const ScalingRow& row : rows) {
    json.push_back({{"nodes", row.nodes},
                    {"cards", row.nodes * setup.memory.cards_per_node},
                    {"packed", StepJson(row.packed)},
                    {"bf16", StepJson(row.bf16)}});
  }
  return json;
}

// An option whose value `parse` accepts; other values are usage errors.
template <class Parse>
Option AddParsed(Command verb, const std::string& name, std::string& value, Parse parse,
                 const std::string& help) {
  return verb.Add(name, value, help).Check([parse](const std::string& text) {
    return std::string(parse(text).status().message());
  });
}

}  // namespace

void AddTrainingOptions(Command verb, TrainingFlags& flags) {
  verb.Add("--ranks", flags.ranks, "number of data-parallel ranks, one per card")
      .AtLeast(1)
      .ShowDefault();
  AddParsed(verb, "--sharding", flags.sharding, ParseSharding,
            "what ranks shard: optimizer (ZeRO-1), gradients (ZeRO-2), weights (ZeRO-3), or zero1, "
            "zero2, zero3; default: all three, side by side");
  AddParsed(verb, "--device-memory", flags.device_memory, ParseByteCount,
            "memory of a card, such as 141GB, to compare with and to find the largest batch for");
  verb.Add("--batch", flags.batch, "sequences of a micro-batch on a rank").AtLeast(1).ShowDefault();
  verb.Add("--recipe", flags.recipe, "preset of the recipe; see `nibble recipe presets`")
      .ShowDefault();
  verb.AddFlag("--recompute", flags.recompute, "run blocks again in the backward pass");
  verb.Add("--compute-capability", flags.capability,
           "of the card: 9.0 (H100, H200) or 10.0 (B100, B200)")
      .OneOf({"9.0", "10.0"})
      .ShowDefault();
  const Option nodes =
      verb.Add("--nodes", flags.nodes,
               "number of nodes: also prints bytes and time of a step on 1, 2, 4, ... nodes")
          .InRange(1, 1 << 16)
          .Excludes("--ranks");
  verb.Add("--cards-per-node", flags.cards_per_node, "cards that share links within a node")
      .InRange(1, 1024)
      .ShowDefault();
  verb.Add("--micro-batches", flags.micro_batches, "micro-batches of a step, on each rank")
      .InRange(1, 1 << 16)
      .Needs(nodes)
      .ShowDefault();
  AddParsed(verb, "--link", flags.link, ParseByteRate,
            "rate of a card within its node: NCCL's bus bandwidth")
      .Needs(nodes)
      .ShowDefault();
  AddParsed(verb, "--fabric", flags.fabric, ParseByteRate, "rate of a card between nodes")
      .Needs(nodes)
      .ShowDefault();
  AddParsed(verb, "--rate", flags.rate, ParseFlopRate,
            "operations of the model per second in a step on one card")
      .Needs(nodes)
      .ShowDefault();
}

absl::StatusOr<TrainingPlanReply> PlanTraining(const Outline& outline, int64_t sequence,
                                               const TrainingFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const TrainingSetup setup, ReadTrainingFlags(outline, sequence, flags));
  const MemoryRequest& request = setup.memory;
  TrainingPlanReply reply;
  Json& json = reply.json;
  json["ranks"] = request.ranks();
  json["training"] = {{"recipe", flags.recipe},
                      {"compute_capability", request.hardware.capability / 10.0},
                      {"micro_batch", request.batch.sequences},
                      {"recompute", request.batch.recompute}};
  if (setup.device_bytes > 0) json["training"]["device_bytes"] = setup.device_bytes;

  std::vector<LevelMemory> levels;
  for (const Sharding level : setup.levels) {
    NIBBLE_ASSIGN_OR_RETURN(LevelMemory memory, MemoryOfLevel(outline, setup, level));
    json["bytes_per_rank"][std::string(ShardingName(level))] = MemoryJson(memory, setup);
    levels.push_back(std::move(memory));
  }
  reply.text = MemoryText(levels, setup, flags);
  if (flags.nodes == 0) return reply;

  json["training"]["micro_batches"] = flags.micro_batches;
  json["rates"] = {{"link_bytes_per_second", setup.rates.link},
                   {"fabric_bytes_per_second", setup.rates.fabric},
                   {"flops_per_second", setup.rates.flops}};
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Unit> units,
                          MakeUnits(outline, setup.recipe, request.hardware, sequence));
  for (const Sharding level : setup.levels) {
    const std::vector<ScalingRow> rows = ScalingOf(units, setup, flags, level);
    json["steps"][std::string(ShardingName(level))] = ScalingJson(rows, setup);
    absl::StrAppend(&reply.text, ScalingText(rows, setup, flags, level));
  }
  return reply;
}

}  // namespace nibble
