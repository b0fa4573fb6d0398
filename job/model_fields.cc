#include "job/model_fields.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/limits.h"
#include "recipe/presets.h"
#include "recipe/selector.h"
#include "recipe/timeline.h"

namespace nibble {

namespace {

using S = ModelSpec;

constexpr char kCustom[] = "custom";
constexpr char kPreset[] = "preset";
constexpr char kAttention[] = " where the pattern has *";
constexpr char kMlp[] = " where the pattern has -";
constexpr char kMamba[] = " where the pattern has M";

template <class E>
std::vector<Choice<E>> Named(std::vector<E> values, std::string_view (*name)(E)) {
  std::vector<Choice<E>> choices;
  for (const E value : values) choices.push_back({value, name(value)});
  return choices;
}

Field<S> PresetField() {
  auto field = Leaf<S>(
      kPreset, "one of", absl::StrJoin(ModelPresetNames(), ", "), "",
      "the preset to start from; without one, every field that the pattern needs must be set");
  field.read = [](const YamlNode& node, const std::string& path, S& spec, Problems& problems) {
    const int index = ReadName(node, path, ModelPresetNames(), problems);
    if (index < 0) return;
    const absl::StatusOr<ModelSpec> preset = ModelPreset(ModelPresetNames()[index]);
    if (preset.ok()) spec = *preset;
  };
  return field;
}

// `where` names the patterns that use the field. Validate(ModelSpec) checks the bounds, because
// fields of blocks that the model does not have may hold any value.
Field<S> Size(std::string name, int64_t S::*member, std::string unit, std::string meaning,
              int64_t most, const char* where = "") {
  const Range<int64_t> range = {1, most};
  return Number(std::move(name), member, range, std::move(unit), std::move(meaning))
      .Allowing(absl::StrCat(RangeText(range), where));
}

Field<S> Real(std::string name, double S::*member, std::string meaning, const RealBounds& bounds,
              const char* where = "") {
  const Range<double> range = {bounds.least, bounds.most};
  return Number(std::move(name), member, range, "", std::move(meaning))
      .Allowing(absl::StrCat(RangeText(range), where));
}

std::vector<Field<S>> AllModelFields() {
  return {
      PresetField(),
      Text("name", &S::name, {TextRule::Kind::kName},
           "name of the model: the preset's, or one of your own"),
      Text("pattern", &S::pattern, {TextRule::Kind::kLine},
           "one character per block: M Mamba-2, * attention, - MLP; quote it")
          .Allowing(absl::StrCat("1 to ", kMaxBlocks, " of M, * and -")),
      Size("vocab", &S::vocab, "tokens", "vocabulary size: rows of the embedding and the head",
           kMaxRows),
      Size("d_model", &S::d_model, "", "width of the residual stream", kMaxWidth),
      OneOf("norm", &S::norm, Named({NormKind::kRmsNorm, NormKind::kLayerNorm}, NormKindName),
            "normalisation before every block and the head"),
      Real("norm_eps", &S::norm_eps, "added to the variance in norms", kNormEpsBounds),
      OneOf("positions", &S::positions,
            Named({Positions::kNone, Positions::kRope, Positions::kLearned}, PositionsName),
            "positional encoding"),
      Real("rope_theta", &S::rope_theta, "base of the rotary frequencies", kRopeThetaBounds,
           " where positions are rope"),
      Size("max_positions", &S::max_positions, "tokens", "rows of the learned position embedding",
           kMaxRows, " where positions are learned"),
      Flag("biases", &S::biases, "linear layers have biases"),
      Flag("tied_head", &S::tied_head, "the head shares the embedding's weights"),
      Size("d_ff", &S::d_ff, "", "width inside the MLP", kMaxWidth, kMlp),
      OneOf(
          "activation", &S::activation,
          Named({Activation::kSquaredRelu, Activation::kGelu, Activation::kSwiglu}, ActivationName),
          "activation function of the MLP"),
      Size("heads", &S::heads, "", "query heads of attention", kMaxWidth, kAttention),
      Size("kv_heads", &S::kv_heads, "", "key and value heads; divides heads", kMaxWidth,
           kAttention),
      Size("head_dim", &S::head_dim, "", "width of an attention head", kMaxWidth, kAttention),
      Size("mamba_heads", &S::mamba_heads, "", "heads of Mamba-2", kMaxWidth, kMamba),
      Size("mamba_head_dim", &S::mamba_head_dim, "", "width of a Mamba-2 head", kMaxWidth, kMamba),
      Size("mamba_groups", &S::mamba_groups, "", "groups that share B and C; divides mamba_heads",
           kMaxWidth, kMamba),
      Size("mamba_state", &S::mamba_state, "", "state per channel of Mamba-2", kMaxWidth, kMamba),
      Size("conv_width", &S::conv_width, "tokens", "kernel width of Mamba-2's causal convolution",
           kMaxConvWidth, kMamba),
      Size("chunk", &S::chunk, "tokens", "chunk length of Mamba-2's scan", kMaxScanChunk, kMamba),
      Real("init_std", &S::init_std, "standard deviation of initial weights", kInitStdBounds),
      Flag("scale_output_init", &S::scale_output_init,
           "initialise output projections smaller, by 1/sqrt(2 · blocks)"),
  };
}

// A size of 0 and an empty text mean that there is no default.
std::vector<Field<S>> Fields() {
  std::vector<Field<S>> fields = AllModelFields();
  for (Field<S>& field : fields) {
    std::string& value = field.doc.default_value;
    if (value == "0" || value == "\"\"") value.clear();
    if (field.doc.path == "name") value = kCustom;
  }
  return fields;
}

void NameIt(ModelSpec& spec) {
  if (spec.name.empty()) spec.name = kCustom;
}

}  // namespace

const Record<ModelSpec>& ModelRecord() {
  static const auto* const record =
      new Record<ModelSpec>{.shorthand = kPreset, .fields = Fields(), .finish = NameIt};
  return *record;
}

YamlNode WriteModel(const ModelSpec& model) {
  const absl::StatusOr<ModelSpec> preset = ModelPreset(model.name);
  if (!preset.ok()) return WriteRecord(ModelRecord(), model);
  if (*preset == model) return YamlNode::Text(model.name);
  YamlNode map = YamlNode::Map();
  map.Put(kPreset, YamlNode::Text(model.name));
  for (const Field<ModelSpec>& field : ModelRecord().fields) {
    if (!field.write) continue;
    YamlNode value = field.write(model);
    if (FlowYaml(value) != FlowYaml(field.write(*preset))) map.Put(field.doc.path, value);
  }
  return map;
}

namespace {

constexpr Range<int64_t> kRules = {0, 64};

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : AllPresets()) names.push_back(preset.name);
  return names;
}

Field<Recipe> RecipePresetField() {
  auto field = Leaf<Recipe>("preset", "one of", absl::StrJoin(PresetNames(), ", "), "",
                            "the recipe that set and layers override");
  field.read = [](const YamlNode& node, const std::string& path, Recipe& recipe,
                  Problems& problems) {
    const std::vector<std::string> names = PresetNames();
    const int index = ReadName(node, path, names, problems);
    if (index >= 0) recipe.preset = names[index];
  };
  field.write = [](const Recipe& recipe) { return YamlNode::Text(recipe.preset); };
  field.check = [](const Recipe& recipe, const std::string& path, Problems& problems) {
    if (!problems.Sound(path)) return;
    const absl::StatusOr<const Preset*> preset = FindPreset(recipe.preset);
    if (!preset.ok()) problems.Add(path, preset.status());
  };
  field.doc.default_value = JobSpec().recipe.preset;
  return field;
}

const Record<LayerRule>& RuleRecord() {
  using S = LayerRule;
  static const auto* const record = [] {
    auto match = Text("match", &S::match, {TextRule::Kind::kLine},
                      "the layers that the entry applies to: `first 2 blocks`, `last 8 blocks`, "
                      "`block 3`, `blocks 4-7`, `attention.qkv`, `mlp`, `blocks.3.mlp.up`, "
                      "`mamba.*`, `mlp.down in last 8 blocks`, `*`")
                     .Required();
    match.doc.allowed = "a selector that matches at least one layer of the model";
    match.check = [](const S& rule, const std::string& path, Problems& problems) {
      if (!problems.Sound(path)) return;
      CheckText(rule.match, path, {TextRule::Kind::kLine}, problems);
      const absl::StatusOr<Selector> selector = Selector::Parse(rule.match);
      if (problems.Sound(path) && !selector.ok()) problems.Add(path, selector.status());
    };
    return new Record<S>{
        .fields = {std::move(match), Settings("set", &S::set, "overrides for these layers")}};
  }();
  return *record;
}

Field<PlannedChange> TimeField() {
  using S = PlannedChange;
  auto field =
      Leaf<S>("at", "time", "step:N, tokens:N, fraction:F, P%, lr-decay", "",
              "the first step of the change; lr-decay: the first step of the learning rate decay")
          .Required();
  field.read = [](const YamlNode& node, const std::string& path, S& change, Problems& problems) {
    std::string text;
    ReadText(node, path, text, problems);
    if (!problems.Sound(path)) return;
    const absl::StatusOr<EffectiveAt> at = ParseEffectiveAt(text);
    if (at.ok()) {
      change.at = *at;
    } else {
      problems.Add(path, at.status());
    }
  };
  field.write = [](const S& change) { return YamlNode::Text(ToString(change.at)); };
  field.check = [](const S& change, const std::string& path, Problems& problems) {
    if (change.at.kind == EffectiveAt::Kind::kNow) {
      problems.Add(
          path,
          "'now' is only for running jobs; allowed: step:N, tokens:N, fraction:F, P%, lr-decay");
    }
  };
  return field;
}

}  // namespace

const Record<Recipe>& RecipeRecord() {
  using S = Recipe;
  static const auto* const record = new Record<S>{
      .shorthand = "preset",
      .fields = {
          RecipePresetField(), Settings("set", &S::set, "overrides for all layers"),
          List("layers", &S::layers, RuleRecord(), kRules,
               "overrides for some layers, applied after set; the last matching entry wins")}};
  return *record;
}

const Record<PlannedChange>& ChangeRecord() {
  using S = PlannedChange;
  static const auto* const record = new Record<S>{
      .fields = {
          TimeField(),
          Settings("set", &S::set, "overrides of the recipe before the change, for all layers"),
          List("layers", &S::layers, RuleRecord(), kRules, "overrides for some layers"),
          Text("reason", &S::reason, {TextRule::Kind::kLine, true},
               "free text, stored with the revision")}};
  return *record;
}

}  // namespace nibble
