#include "kernels/cuda/vector_check.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/vector_file.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

// The block is repeated over a copy of this shape.
constexpr int64_t kRows = 64;
constexpr int64_t kCols = 128;

// A copy as bytes on the host.
struct HostCopy {
  std::vector<uint8_t> codes, scales;
  std::vector<uint16_t> emulated;  // in the copy's layout
};

// Quantises `values`, [kRows, kCols] in copy coordinates, on any backend.
absl::StatusOr<HostCopy> Quantize(Backend& backend, const std::vector<float>& values, bool bf16,
                                  bool column, const OperandSpec& spec, float amax) {
  std::vector<float> source = values;
  if (column) {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kCols; ++j) source[j * kRows + i] = values[i * kCols + j];
    }
  }
  std::vector<uint16_t> half;
  for (const float value : source) half.push_back(EncodeBf16(value));
  const void* host = bf16 ? static_cast<const void*>(half.data()) : source.data();
  const size_t bytes = source.size() * (bf16 ? 2 : 4);

  Memory& memory = backend.memory();
  NIBBLE_ASSIGN_OR_RETURN(Buffer x, memory.Allocate(bytes));
  NIBBLE_ASSIGN_OR_RETURN(Buffer known, memory.Allocate(sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(x.data(), host, bytes));
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(known.data(), &amax, sizeof(amax)));
  const int64_t rows = column ? kCols : kRows;
  const int64_t cols = column ? kRows : kCols;
  NIBBLE_ASSIGN_OR_RETURN(
      QuantizedTensor out,
      QuantizedTensor::Create(memory,
                              {.spec = spec,
                               .orientation = column ? Orientation::kColumn : Orientation::kRow,
                               .rows = rows,
                               .cols = cols,
                               .emulated = EmulatedLayout::kCopy}));
  QuantizeRequest request;
  request.x = {x.data(), bf16 ? DType::kBf16 : DType::kF32, rows, cols, cols};
  CopyRequest& copy = column ? request.column : request.row;
  copy.out = &out;
  copy.amax = known.data<float>();
  NIBBLE_RETURN_IF_ERROR(backend.Quantize(request));
  NIBBLE_RETURN_IF_ERROR(backend.Synchronize());
  HostCopy result;
  result.codes.resize(out.code_bytes());
  result.scales.resize(out.scale_bytes());
  result.emulated.resize(kRows * kCols);
  NIBBLE_RETURN_IF_ERROR(memory.CopyOut(result.codes.data(), out.codes(), out.code_bytes()));
  NIBBLE_RETURN_IF_ERROR(memory.CopyOut(result.scales.data(), out.scales(), out.scale_bytes()));
  NIBBLE_RETURN_IF_ERROR(
      memory.CopyOut(result.emulated.data(), out.emulated(), result.emulated.size() * 2));
  return result;
}

int64_t Differences(const BlockCase& block, const HostCopy& got) {
  int64_t differences = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kCols; ++j) {
      const size_t k = i % block.rows * block.cols() + j % block.cols();
      const uint8_t byte = got.codes[(i * kCols + j) / 2];
      const uint32_t code = j % 2 == 0 ? byte & 15u : byte >> 4;
      if (!block.codes.empty() && code != block.codes[k]) ++differences;
      if (!block.emulated.empty() && got.emulated[i * kCols + j] != block.emulated[k]) {
        ++differences;
      }
      const uint32_t scale = got.scales[i / block.rows * (kCols / 16) + j / 16];
      if (block.scale.has_value() && scale != *block.scale) ++differences;
    }
  }
  return differences;
}

absl::StatusOr<int64_t> CheckBlock(const BlockCase& block, CudaBackend& cuda) {
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.formula = block.formula;
  spec.block = {block.rows, 16};
  uint32_t amax = block.global_amax.value_or(0);
  bool exact_in_bf16 = true;
  std::vector<float> values(kRows * kCols);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kCols; ++j) {
      const uint32_t bits = block.x[i % block.rows * block.cols() + j % block.cols()];
      if (!block.global_amax) amax = std::max(amax, bits & 0x7fffffffu);
      exact_in_bf16 &= (bits & 0xffffu) == 0;
      values[i * kCols + j] = FromBits<float>(bits);
    }
  }
  int64_t differences = 0;
  for (const bool bf16 : {false, true}) {
    if (bf16 && !exact_in_bf16) continue;
    for (const bool column : {false, true}) {
      NIBBLE_ASSIGN_OR_RETURN(const HostCopy got,
                              Quantize(cuda, values, bf16, column, spec, FromBits<float>(amax)));
      differences += Differences(block, got);
    }
  }
  return differences;
}

// Compares the transform on the card, quantised, with the listed result quantised on the CPU.
absl::StatusOr<int64_t> CheckTransform(const HadamardCase& c, CpuBackend& cpu, CudaBackend& cuda) {
  std::vector<float> in(kRows * kCols), out(kRows * kCols);
  float amax = 0;
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    in[i] = DecodeBf16(c.in[i % c.spec.size]);
    out[i] = DecodeBf16(c.out[i % c.spec.size]);
    amax = std::max(amax, out[i] < 0 ? -out[i] : out[i]);
  }
  OperandSpec plain = OperandSpec::Of(Format::kNvfp4);
  OperandSpec transformed = plain;
  transformed.hadamard = c.spec;
  int64_t differences = 0;
  for (const bool column : {false, true}) {
    NIBBLE_ASSIGN_OR_RETURN(const HostCopy want, Quantize(cpu, out, true, column, plain, amax));
    NIBBLE_ASSIGN_OR_RETURN(const HostCopy got,
                            Quantize(cuda, in, true, column, transformed, amax));
    differences += want.codes != got.codes;
    differences += want.scales != got.scales;
    differences += want.emulated != got.emulated;
  }
  return differences;
}

}  // namespace

absl::StatusOr<int64_t> CheckVectors(const std::string& path, CpuBackend& cpu, CudaBackend& cuda) {
  std::ifstream stream(path);
  if (!stream.is_open()) return absl::NotFoundError(absl::StrCat("vectors: no file ", path));
  std::stringstream text;
  text << stream.rdbuf();
  const VectorFile file = ParseVectors(text.str());
  if (file.cases() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("vectors: no case in ", path));
  }
  int64_t differences = 0;
  int64_t blocks = 0;
  int64_t transforms = 0;
  for (const BlockCase& block : file.blocks) {
    if (block.format != Format::kNvfp4 || block.cols() != 16) continue;
    NIBBLE_ASSIGN_OR_RETURN(const int64_t found, CheckBlock(block, cuda));
    if (found != 0) std::printf("  DIFFERS: %s\n", block.title.c_str());
    differences += found;
    ++blocks;
  }
  for (const HadamardCase& transform : file.transforms) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t found, CheckTransform(transform, cpu, cuda));
    if (found != 0) std::printf("  DIFFERS: %s\n", transform.title.c_str());
    differences += found;
    ++transforms;
  }
  std::printf("%s: %ld of %zu blocks, %ld of %zu transforms on the card, %ld differences\n",
              path.c_str(), static_cast<long>(blocks), file.blocks.size(),
              static_cast<long>(transforms), file.transforms.size(),
              static_cast<long>(differences));
  return differences;
}

}  // namespace nibble
