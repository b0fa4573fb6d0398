// Reads worked vectors (testdata/vectors/nvfp4.md and similar files) into cases that a test, or a
// check on a GPU, compares with zero tolerance. The parser is lenient: it lists sections and lines
// that it cannot parse, and never guesses or silently drops them.
//
// Thread-safety: pure.
#ifndef NIBBLE_KERNELS_CPU_VECTOR_FILE_H_
#define NIBBLE_KERNELS_CPU_VECTOR_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/operand_spec.h"

namespace nibble {

// One block: input and expected output. Empty lists and unset values were not given.
struct BlockCase {
  std::string title;
  Format format = Format::kNvfp4;
  FormulaVersion formula = FormulaVersion::kTe2_14;
  int rows = 1;             // rows of the block; x: [rows, x.size() / rows], row-major
  std::vector<uint32_t> x;  // FP32 bits
  std::optional<uint32_t> global_amax, s_enc, s_enc_over_6, enc;  // FP32 bits
  std::optional<uint32_t> scale;                                  // code, or FP32 bits
  std::vector<uint32_t> codes;                                    // element order
  std::vector<uint8_t> bytes;                                     // packed
  std::vector<uint16_t> emulated;                                 // BF16 bits
  std::vector<uint32_t> dequant;                                  // FP32 bits

  int cols() const { return static_cast<int>(x.size()) / rows; }
};

struct HadamardCase {
  std::string title;
  HadamardSpec spec;              // signs given
  std::vector<uint16_t> in, out;  // BF16 bits
};

struct PhiloxCase {
  uint32_t counter[4], key[2], expected[4];
};

// A scalar rounded to nearest.
struct CastCase {
  std::string text;
  Element element;
  float x;
  uint32_t code;
};

// A scalar rounded to E2M1 with each of these random bytes.
struct StochasticCase {
  std::string text;
  float x;
  std::vector<uint32_t> random;
  std::vector<float> expected;
};

struct VectorFile {
  std::vector<BlockCase> blocks;
  std::vector<HadamardCase> transforms;
  std::vector<PhiloxCase> philox;
  std::vector<CastCase> casts;
  std::vector<StochasticCase> stochastic;
  // Titles of sections without cases, and lines that could not be parsed in other sections.
  std::vector<std::string> not_understood;

  size_t cases() const {
    return blocks.size() + transforms.size() + philox.size() + casts.size() + stochastic.size();
  }
};

VectorFile ParseVectors(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_VECTOR_FILE_H_
