// ToYaml and ParseJobSpec round trips, and ParseJobSpec on damaged text.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

class SpecSource {
 public:
  explicit SpecSource(uint64_t seed) : random_(seed) {}

  JobSpec Next() {
    JobSpec spec;
    spec.name = absl::StrCat("job-", Below(1000), ".x_y");
    spec.model = Model();
    spec.recipe.preset = Below(2) ? "nvfp4" : "mxfp8";
    if (Below(2)) spec.recipe.set = {{"hadamard", Below(2) ? "off" : "32"}, {"keep", "1+2"}};
    if (Below(2)) spec.recipe.layers = Rules();
    for (uint64_t i = Below(4); i > 0; --i) {
      spec.changes.push_back(
          {.at = At(), .set = {{"fprop", "bf16"}}, .layers = Rules(), .reason = Line()});
    }
    for (uint64_t i = 0; i <= Below(3); ++i) {
      spec.data.train.push_back({Line() + "x", static_cast<int64_t>(1 + Below(1000))});
    }
    for (uint64_t i = Below(3); i > 0; --i) {
      spec.data.validation.push_back({absl::StrCat("set", i), Line() + "y"});
    }
    spec.data.sequence = 128 * static_cast<int64_t>(1 + Below(4));
    spec.data.split = Below(2) ? JobSplit::kFile : JobSplit::kParagraphs;
    spec.data.validation_fraction = 0.5 * Fraction() + 1e-12;
    spec.data.reset_at_documents = Below(2);
    spec.training = {.steps = static_cast<int64_t>(1000 + Below(100'000'000 - 1000)),
                     .batch = 8,
                     .micro_batch = Below(2) ? 4 : 0,
                     .seed = random_(),
                     .recompute = Below(2) ? JobRecompute::kBlocks : JobRecompute::kNone,
                     .validate_every = static_cast<int64_t>(Below(1000))};
    spec.optimizer.lr = 1e-3 + Fraction();
    spec.optimizer.final_lr = std::ldexp(1 + Fraction(), -static_cast<int>(12 + Below(1000)));
    spec.optimizer.beta1 = 0.999 * Fraction();
    spec.optimizer.beta2 = std::nextafter(0.999999, 0.0);
    spec.optimizer.epsilon = std::ldexp(1 + Fraction(), -static_cast<int>(1 + Below(98)));
    spec.optimizer.decay_shape = ChoicesOf<DecayShape>()[Below(3)].value;
    spec.guards.non_finite = ChoicesOf<NonFinitePolicy>()[Below(4)].value;
    spec.guards.spike = ChoicesOf<SpikePolicy>()[Below(6)].value;
    spec.guards.gradient_norm = ChoicesOf<SpikePolicy>()[Below(6)].value;
    spec.guards.underflow = ChoicesOf<OperandPolicy>()[Below(5)].value;
    spec.guards.underflow_above = Fraction();
    if (Below(2)) spec.guards.promote_layers = "last 1 blocks";
    spec.guards.spike_z = 1 + 100 * Fraction();
    spec.resources.ranks = Below(2) ? 2 : 1;
    if (Below(2))
      spec.init_from = {.job = Line() + "z", .step = static_cast<int64_t>(Below(9)) - 1};
    if (Below(4) == 0) spec.init_from = {.path = Line() + "z"};
    if (Below(2)) spec.notify = {{.url = "http://a.example.org:81/b?c=%20"}};
    if (Below(2)) spec.notify.push_back({"https://[::1]", {NotifyEvent::kRecipeChanged}});
    spec.output.directory = Below(2) ? "" : Line();
    spec.output.tensorboard = Below(2) ? "" : Line();
    return spec;
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  double Fraction() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  // Any text that fits on one line.
  std::string Line() {
    static constexpr const char* kPieces[] = {
        "a", " ", "\"", "\\", "'", ": ", " #", "é", "𝄞", "-",      "*",      "&",   "!",
        "%", "[", "}",  ",",  "1", "~",  "?",  "|", ">", "\u0085", "\u2028", "null"};
    std::string line;
    for (uint64_t i = Below(8); i > 0; --i) line += kPieces[Below(std::size(kPieces))];
    return line;
  }

  ModelSpec Model() {
    ModelSpec model = *ModelPreset(ModelPresetNames()[8 + Below(6)]);
    if (Below(2)) model.norm_eps = 1e-6 + 0.5 * Fraction();
    if (Below(3) == 0) model.name = "mine";
    return model;
  }

  std::vector<LayerRule> Rules() {
    return {{"mlp", {{"fprop", "bf16"}}}, {"last 1 blocks", {{"all", "mxfp8"}}}};
  }

  EffectiveAt At() {
    switch (Below(3)) {
      case 0:
        return {.kind = EffectiveAt::Kind::kStep, .count = static_cast<int64_t>(Below(1000))};
      case 1:
        return {.kind = EffectiveAt::Kind::kFraction, .fraction = Fraction()};
      default:
        return {.kind = EffectiveAt::Kind::kLrDecay};
    }
  }

  std::mt19937_64 random_;
};

TEST(RoundTripTest, AValidSpecReadsBackAsItself) {
  SpecSource source(20250917);
  for (int i = 0; i < 300; ++i) {
    const JobSpec spec = source.Next();
    ASSERT_TRUE(Validate(spec).ok()) << Validate(spec) << "\n" << ToYaml(spec);
    const std::string yaml = ToYaml(spec);
    const absl::StatusOr<JobSpec> read = ParseJobSpec(yaml);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << yaml;
    ASSERT_EQ(*read, spec) << yaml;
    ASSERT_EQ(ToYaml(*read), yaml);
  }
}

TEST(RoundTripTest, EveryModelPresetIsWrittenByItsName) {
  for (const std::string& name : ModelPresetNames()) {
    JobSpec spec;
    spec.model = *ModelPreset(name);
    EXPECT_NE(ToYaml(spec).find(absl::StrCat("model: ", name, "\n")), std::string::npos);
  }
}

// Damaged text gives a spec or an error, and a spec reads back as itself.
TEST(RoundTripTest, DamagedTextGivesAnErrorOrASpecThatReadsBack) {
  const std::string whole = DefaultsYaml();
  std::mt19937_64 random(4);
  constexpr std::string_view kBytes = ":-[]{}#&*!|>'\"%@`,?\n \t~01x.\\\xc3\xa9";
  int specs = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = whole;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          text.insert(at, 1, kBytes[random() % kBytes.size()]);
          break;
        default:
          text.erase(at, 1 + random() % 20);
      }
    }
    const absl::StatusOr<JobSpec> spec = ParseJobSpec(text);
    if (!spec.ok()) {
      EXPECT_FALSE(spec.status().message().empty());
      EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << spec.status();
      continue;
    }
    ++specs;
    const absl::StatusOr<JobSpec> again = ParseJobSpec(ToYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *spec);
  }
  EXPECT_GT(specs, 0);  // damage in comments leaves specs valid
}

TEST(RoundTripTest, HugeDocumentsAreRefusedQuickly) {
  EXPECT_EQ(ParseJobSpec(std::string(kMaxJobBytes + 1, '#')).status().code(),
            absl::StatusCode::kOutOfRange);
  std::string keys;
  for (int i = 0; keys.size() < kMaxJobBytes - 20; ++i) absl::StrAppend(&keys, "key", i, ": 1\n");
  EXPECT_NE(ParseJobSpec(keys).status().message().find("more than 50000 keys and values"),
            absl::string_view::npos);
  EXPECT_FALSE(ParseJobSpec("data: {train: [" + std::string(500'000, 'a') + "]}").ok());
  std::string entries = "data:\n  train:\n";
  for (int i = 0; i < 10'000; ++i) entries += "    - a\n";
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(entries);
  EXPECT_NE(spec.status().message().find("data.train: 10000 entries; allowed: 1 to 256"),
            absl::string_view::npos);
}

}  // namespace
}  // namespace nibble
