// Damaged files: every outcome but a crash, a hang or an allocation out of proportion is right.

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/interop/hf_config.h"
#include "worker/interop/hf_layout.h"
#include "worker/interop/interop_testing.h"
#include "worker/interop/shard_index.h"

namespace nibble {
namespace {

constexpr int kMutations = 30'000;

// One to four small damages: bytes changed, cut, repeated, numbers and words put in.
std::string Mutated(std::string text, std::mt19937_64& random) {
  static const std::string kPieces[] = {"-1",       "0",    "9223372036854775808",
                                        "1e999",    "null", "true",
                                        "\"\"",     "[",    "]",
                                        "{",        "}",    ",",
                                        "Infinity", "1.5",  "4096",
                                        "\\u0",     "\xff", "1048576"};
  for (uint64_t n = 1 + random() % 4; n > 0 && !text.empty(); --n) {
    const size_t at = random() % text.size();
    switch (random() % 6) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 8);
        break;
      case 2:
        text.insert(at, text.substr(random() % text.size(), 1 + random() % 40));
        break;
      case 3:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 4: {
        // A whole value in place of another.
        const size_t colon = text.find(':', at);
        if (colon == std::string::npos) break;
        const size_t end = text.find_first_of(",}", colon);
        if (end != std::string::npos) {
          text.replace(colon + 1, end - colon - 1, kPieces[random() % std::size(kPieces)]);
        }
        break;
      }
      default:
        if (random() % 20 == 0) text.resize(at);
    }
  }
  return text;
}

TEST(Mutations, OfConfigsAreReadOrRefused) {
  std::mt19937_64 random(1);
  std::vector<std::string> valid;
  for (const ModelSpec& spec : ClassSpecs()) {
    valid.push_back(HfConfig(*MakeOutline(spec), {})->dump());
  }
  int read = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = Mutated(valid[random() % valid.size()], random);
    const absl::StatusOr<HfModelConfig> config = SpecFromHfConfig(text);
    if (!config.ok()) {
      ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
      ASSERT_LT(config.status().message().size(), 500u) << text;
      continue;
    }
    ++read;
    // What was read is a model, of the class that the file names.
    const absl::StatusOr<Outline> outline = MakeOutline(config->spec);
    ASSERT_TRUE(outline.ok()) << outline.status() << text;
    const absl::StatusOr<HfModelLayout> layout = HfLayout(*outline);
    ASSERT_TRUE(layout.ok()) << layout.status() << text;
    ASSERT_EQ(layout->model_class, config->model_class) << text;
  }
  EXPECT_GT(read, kMutations / 100);
  EXPECT_LT(read, kMutations / 2);
}

TEST(Mutations, OfIndicesAreReadOrRefused) {
  std::mt19937_64 random(2);
  ShardIndex index;
  for (int i = 0; i < 12; ++i) {
    index.file_of.emplace("model.layers." + std::to_string(i), ShardFileName(1 + i / 4, 3));
  }
  const std::string valid = ShardIndexText(index, 1000);
  int read = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = Mutated(valid, random);
    const absl::StatusOr<ShardIndex> result = ParseShardIndex(text);
    if (!result.ok()) {
      ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << text;
      continue;
    }
    ++read;
    for (const std::string& file : result->Files()) {
      ASSERT_EQ(file.find('/'), std::string::npos) << text;
      ASSERT_TRUE(file.ends_with(".safetensors")) << text;
    }
  }
  EXPECT_GT(read, kMutations / 100);
}

}  // namespace
}  // namespace nibble
