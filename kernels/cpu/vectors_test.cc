// Worked vectors through the CPU backend, with zero tolerance. NIBBLE_VECTORS names the files
// (separated by colons); without it, the copy in this repository.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/quantize_testing.h"
#include "kernels/cpu/vector_file.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/scaling.h"

namespace nibble {
namespace {

const VectorFile& Vectors() {
  static const VectorFile all = [] {
    const char* given = std::getenv("NIBBLE_VECTORS");
    std::stringstream paths(given != nullptr ? given : "testdata/vectors/nvfp4.md");
    VectorFile file;
    for (std::string path; std::getline(paths, path, ':');) {
      std::ifstream in(path);
      EXPECT_TRUE(in.is_open()) << path;
      std::stringstream text;
      text << in.rdbuf();
      VectorFile one = ParseVectors(text.str());
      EXPECT_GT(one.cases(), 0u) << "no case in " << path;
      std::cerr << path << ": " << one.blocks.size() << " blocks, " << one.transforms.size()
                << " transforms, " << one.philox.size() << " philox, " << one.casts.size()
                << " casts, " << one.stochastic.size() << " stochastic\n";
      for (const std::string& what : one.not_understood) {
        std::cerr << path << ": not understood: " << what << "\n";
      }
      const auto append = [](auto& to, auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(file.blocks, one.blocks);
      append(file.transforms, one.transforms);
      append(file.philox, one.philox);
      append(file.casts, one.casts);
      append(file.stochastic, one.stochastic);
    }
    return file;
  }();
  return all;
}

uint32_t Cast(Element element, float x) {
  switch (element) {
    case Element::kE2M1:
      return E2M1::Encode(x);
    case Element::kE4M3:
      return E4M3::Encode(x);
    case Element::kE5M2:
      break;
  }
  return E5M2::Encode(x);
}

float Decode(Element element, uint32_t code) {
  if (element == Element::kE2M1) return E2M1::Decode<float>(code);
  if (element == Element::kE4M3) return E4M3::Decode<float>(code);
  return E5M2::Decode<float>(code);
}

uint32_t AmaxOf(const BlockCase& c) {
  if (c.global_amax) return *c.global_amax;
  uint32_t amax = 0;
  for (const uint32_t bits : c.x) amax = std::max(amax, bits & 0x7fffffff);
  return amax;
}

// The place of the block in a [32, 64] copy: every second one, among other numbers.
constexpr int kCopyRows = 32;
constexpr int kCopyCols = 64;
bool IsHere(const BlockCase& c, int row, int col) {
  return (row / c.rows + col / c.cols()) % 2 == 0;
}

std::vector<float> Surround(const BlockCase& c) {
  std::mt19937_64 random(7);
  const float amax = std::min(FromU32(AmaxOf(c)), 3e38f);
  std::vector<float> copy(kCopyRows * kCopyCols);
  for (int row = 0; row < kCopyRows; ++row) {
    for (int col = 0; col < kCopyCols; ++col) {
      const float other = static_cast<float>(random() % 2048) / 1024.0f - 1.0f;
      // Filled with BF16 values, so that the whole source can be given as BF16.
      copy[row * kCopyCols + col] = IsHere(c, row, col)
                                        ? FromU32(c.x[row % c.rows * c.cols() + col % c.cols()])
                                        : DecodeBf16(EncodeBf16(other * amax * 0.99f));
    }
  }
  return copy;
}

std::vector<float> Transposed(const std::vector<float>& x, int rows, int cols) {
  std::vector<float> out(x.size());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) out[c * rows + r] = x[r * cols + c];
  }
  return out;
}

// The case's value for an element, or the result if the case has none.
template <class T>
T Given(const std::vector<T>& list, size_t i, T got) {
  return list.empty() ? got : list.at(i);
}

// Checks the case at every place of the block in a quantised copy.
void ExpectCase(const BlockCase& c, const QuantizedTensor& out) {
  const Element element = out.format().element;
  const bool fp4 = element == Element::kE2M1;
  const uint32_t amax = AmaxOf(c);
  for (int row = 0; row < kCopyRows; ++row) {
    for (int col = 0; col < kCopyCols; ++col) {
      if (!IsHere(c, row, col)) continue;
      const size_t i = row % c.rows * c.cols() + col % c.cols();
      const int at = row / c.rows * static_cast<int>(out.scale_cols()) + col / c.cols();
      const uint32_t scale = static_cast<const uint8_t*>(out.scales())[at];
      ASSERT_EQ(scale, c.scale.value_or(scale)) << "row " << row << ", column " << col;
      const uint8_t byte = out.codes()[row * out.code_row_bytes() + (fp4 ? col / 2 : col)];
      const uint32_t code = !fp4 ? byte : col % 2 == 0 ? byte & 0xf : byte >> 4;
      ASSERT_EQ(code, Given(c.codes, i, code)) << "row " << row << ", column " << col;
      ASSERT_EQ(byte, Given(c.bytes, fp4 ? i / 2 : i, byte)) << "element " << i;
      const uint16_t emulated = out.emulated()[row * kCopyCols + col];
      ASSERT_EQ(emulated, Given(c.emulated, i, emulated)) << "element " << i;
      const float factor =
          c.format == Format::kNvfp4
              ? Nvfp4::DecodeFactor<float>(E4M3::Decode<float>(scale), FromU32(amax))
              : E8M0::Decode(scale);
      const float value = Decode(element, code) * factor;
      if (c.dequant.empty() || (std::isnan(value) && std::isnan(FromU32(c.dequant.at(i)))))
        continue;
      ASSERT_EQ(ToU32(value), c.dequant.at(i)) << "element " << i;
    }
  }
}

// Runs `copy`, [kCopyRows, kCopyCols] in the coordinates of the copy, and checks the case in it.
void RunCase(const BlockCase& c, const std::vector<float>& copy, const HadamardSpec& hadamard,
             cpu::Isa isa, bool column, bool bf16) {
  SCOPED_TRACE(c.title + (column ? ", column, " : ", row, ") + (bf16 ? "bf16, " : "f32, ") +
               std::string(cpu::IsaName(isa)));
  const auto backend = CpuBackend::Create({.threads = 1, .isa = isa});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const int rows = column ? kCopyCols : kCopyRows;
  const int cols = column ? kCopyRows : kCopyCols;
  const std::vector<float> x = column ? Transposed(copy, kCopyRows, kCopyCols) : copy;
  std::vector<uint16_t> halves(x.size());
  for (size_t i = 0; i < x.size(); ++i) halves[i] = static_cast<uint16_t>(ToU32(x[i]) >> 16);

  QuantizedTensor::Options options = {
      .spec = OperandSpec::Of(c.format),
      .orientation = column ? Orientation::kColumn : Orientation::kRow,
      .rows = rows,
      .cols = cols,
      .emulated = EmulatedLayout::kCopy};
  options.spec.block = {c.rows, c.cols()};
  options.spec.formula = c.formula;
  options.spec.hadamard = hadamard;
  absl::StatusOr<QuantizedTensor> out = QuantizedTensor::Create((*backend)->memory(), options);
  ASSERT_TRUE(out.ok()) << out.status();
  const float amax = FromU32(AmaxOf(c));
  QuantizeRequest request;
  request.x =
      bf16 ? ConstMatrix::OfBf16(halves.data(), rows, cols) : ConstMatrix::Of(x.data(), rows, cols);
  CopyRequest& wanted = column ? request.column : request.row;
  wanted.out = &*out;
  wanted.amax = &amax;
  const absl::Status status = (*backend)->Quantize(request);
  ASSERT_TRUE(status.ok()) << status;
  ExpectCase(c, *out);
}

TEST(Vectors, EveryFileHasCases) { EXPECT_GT(Vectors().cases(), 0u); }

TEST(Vectors, TheBackendReproducesBlocksBitForBit) {
  for (const BlockCase& c : Vectors().blocks) {
    const bool bf16 =
        std::all_of(c.x.begin(), c.x.end(), [](uint32_t bits) { return (bits & 0xffff) == 0; });
    const std::vector<float> copy = Surround(c);
    for (const cpu::Isa isa : cpu::SupportedIsas()) {
      for (const bool column : {false, true}) {
        RunCase(c, copy, {}, isa, column, false);
        if (bf16) RunCase(c, copy, {}, isa, column, true);
      }
    }
  }
}

TEST(Vectors, ScalesOfBlocksFollowFromTheFormulas) {
  for (const BlockCase& c : Vectors().blocks) {
    if (c.format != Format::kNvfp4) continue;
    SCOPED_TRACE(c.title);
    const Nvfp4::TensorScale tensor =
        Nvfp4::ForTensor(FromU32(AmaxOf(c)), c.formula == FormulaVersion::kTePre2_14);
    EXPECT_EQ(ToU32(tensor.encode), c.s_enc.value_or(ToU32(tensor.encode)));
    EXPECT_EQ(ToU32(tensor.encode_over_6), c.s_enc_over_6.value_or(ToU32(tensor.encode_over_6)));
    if (c.scale && c.enc) {
      const float scale = E4M3::Decode<float>(*c.scale);
      EXPECT_EQ(ToU32(Nvfp4::EncodeFactor<float>(scale, tensor)), *c.enc);
    }
  }
}

TEST(Vectors, TransformsMatchBitForBit) {
  for (const HadamardCase& c : Vectors().transforms) {
    SCOPED_TRACE(c.title);
    std::vector<float> x;
    for (const uint16_t bits : c.in) x.push_back(DecodeBf16(bits));
    const SignMask signs = {{c.spec.mask[0], c.spec.mask[1], c.spec.mask[2], c.spec.mask[3]}};
    HadamardBf16<float>(x.data(), c.spec.size, 1, signs);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(EncodeBf16(x[i]), c.out[i]) << i;
  }
}

// A block that is the result of a transform: the backend does both in one step.
TEST(Vectors, TheBackendReproducesTransformedBlocksBitForBit) {
  for (const HadamardCase& transform : Vectors().transforms) {
    for (const BlockCase& c : Vectors().blocks) {
      if (c.rows != 1 || c.x.size() != transform.out.size()) continue;
      bool same = true;
      for (size_t i = 0; i < c.x.size(); ++i) {
        same &= c.x[i] == static_cast<uint32_t>(transform.out[i]) << 16;
      }
      if (!same) continue;
      std::vector<float> copy = Surround(c);
      for (int i = 0; i < kCopyRows * kCopyCols; ++i) {
        if (IsHere(c, i / kCopyCols, i % kCopyCols))
          copy[i] = DecodeBf16(transform.in[i % c.cols()]);
      }
      for (const cpu::Isa isa : cpu::SupportedIsas()) {
        for (const bool column : {false, true}) {
          for (const bool bf16 : {false, true}) {
            RunCase(c, copy, transform.spec, isa, column, bf16);
          }
        }
      }
    }
  }
}

TEST(Vectors, CastsRoundAsListed) {
  for (const CastCase& c : Vectors().casts) {
    EXPECT_EQ(Cast(c.element, c.x), c.code) << c.text << " (" << c.x << ")";
  }
}

TEST(Vectors, PhiloxGivesTheListedWords) {
  for (const PhiloxCase& c : Vectors().philox) {
    PhiloxWords<uint32_t> words;
    std::copy(std::begin(c.counter), std::end(c.counter), words.word);
    words = Philox4x32(words, c.key[0], c.key[1]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], c.expected[i]);
  }
}

TEST(Vectors, StochasticRoundingGivesTheListedValues) {
  for (const StochasticCase& c : Vectors().stochastic) {
    for (size_t i = 0; i < c.random.size(); ++i) {
      const float got = E2M1::Decode<float>(E2M1::EncodeStochastic(c.x, c.random[i]));
      EXPECT_EQ(ToU32(got), ToU32(c.expected[i])) << c.text;
    }
  }
}

TEST(VectorFile, SectionsAndLinesThatCannotBeParsedAreReported) {
  const VectorFile file = ParseVectors(
      "# Title\nprose\n\n## 4. Something new\n```\nfoo 0x12 -> 13\n```\n"
      "## 8. Philox\nphilox4x32-10 ctr 0 0 0 0\n"
      "philox4x32-10 ctr 00000000 00000000 00000000 00000000 key 00000000 00000000 -> 6627e8d5 "
      "e169c58d bc57ac4c 9b00dbd8\n");
  EXPECT_EQ(file.cases(), 1u);
  ASSERT_EQ(file.not_understood.size(), 2u);
  EXPECT_EQ(file.not_understood[0], "section \"4. Something new\"");
  EXPECT_EQ(file.not_understood[1], "line 8. Philox: philox4x32-10 ctr 0 0 0 0");
}

TEST(VectorFile, BlocksOfSeveralRowsAndOfMxFormatsAreParsed) {
  std::string text = "## 4. 16x16\n### W tile\nglobal_amax 0x1.8p+2 = 6 (0x40c00000)\n";
  std::string row;
  for (int i = 0; i < 16; ++i) row += " 3f800000";
  for (int i = 0; i < 16; ++i) text += "x row " + std::to_string(i) + ":" + row + "\n";
  text += "scale 0x7e (448) enc 0x3f800000 (1)\ncodes:\n";
  for (int i = 0; i < 16; ++i) text += "2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2\n";
  text += "## 5. MXFP8\n### M\nx bf16/f32 bits:" + row + row + "\nscale 0x77\ncodes:";
  for (int i = 0; i < 32; ++i) text += " 7e";
  const VectorFile file = ParseVectors(text);
  EXPECT_TRUE(file.not_understood.empty());
  ASSERT_EQ(file.blocks.size(), 2u);
  EXPECT_EQ(file.blocks[0].format, Format::kNvfp4);
  EXPECT_EQ(file.blocks[0].rows, 16);
  EXPECT_EQ(file.blocks[0].codes.size(), 256u);
  EXPECT_EQ(file.blocks[0].global_amax, 0x40c00000u);
  EXPECT_EQ(file.blocks[0].enc, 0x3f800000u);
  EXPECT_EQ(file.blocks[1].format, Format::kMxfp8);
  EXPECT_EQ(file.blocks[1].cols(), 32);
  EXPECT_EQ(file.blocks[1].scale, 0x77u);
  EXPECT_EQ(file.blocks[1].codes, std::vector<uint32_t>(32, 0x7e));
}

}  // namespace
}  // namespace nibble
