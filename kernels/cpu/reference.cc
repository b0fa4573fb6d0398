#include "kernels/cpu/reference.h"

#include <algorithm>

#include "kernels/formats/bfloat16.h"

namespace nibble::cpu {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;

// A group of up to 16 elements along the quantised direction of one copy row.
struct Group {
  float value[16];
  int size;
};

// Copy row `line`, group `group`: a row patch's line is a row, a column patch's a column.
Group LoadGroup(const Patch& x, bool columns, int64_t line, int64_t group) {
  const int64_t length = columns ? x.rows : x.cols;
  Group result;
  result.size = static_cast<int>(std::min<int64_t>(16, length - 16 * group));
  for (int i = 0; i < result.size; ++i) {
    const int64_t along = 16 * group + i;
    const int64_t at = columns ? along * x.stride + line : line * x.stride + along;
    const float value = x.bf16 ? DecodeBf16(static_cast<const uint16_t*>(x.data)[at])
                               : static_cast<const float*>(x.data)[at];
    result.value[i] = x.hadamard16 ? FromBits<float>(RoundToBf16Bits<float>(value)) : value;
  }
  if (x.hadamard16) {
    SignMask signs;
    for (int i = 0; i < 16; ++i) signs.word[0] |= (x.sign_bits[i] >> 31) << i;
    HadamardBf16<float>(result.value, 16, 1, signs);
  }
  return result;
}

uint32_t MagnitudeBits(float value) { return BitsOf<float>(value) & 0x7fffffffu; }

AmaxResult GroupAmax(const Group& group) {
  AmaxResult result;
  for (int i = 0; i < group.size; ++i) {
    const uint32_t bits = MagnitudeBits(group.value[i]);
    if (bits >= kInfinity) ++result.non_finite;
    if (bits <= kInfinity) result.amax_bits = std::max(result.amax_bits, bits);
  }
  return result;
}

int64_t Lines(const Patch& x, bool columns) { return columns ? x.cols : x.rows; }
int64_t Groups(const Patch& x, bool columns) { return ((columns ? x.rows : x.cols) + 15) / 16; }

void AddScale(StatSums& sums, float scale) {
  const uint64_t bits = BitsOf<float>(scale);
  if (bits == 0) return;
  sums.max_scale = std::max(sums.max_scale, bits);
  sums.min_scale = std::min(sums.min_scale, bits);
}

template <class E>
void EncodeGroup(const EncodeArgs& args, bool columns, int64_t line, int64_t index) {
  const Group group = LoadGroup(args.x, columns, line, index);
  float encode, emulate, decode = 0;
  if (args.inline_nvfp4) {
    const float amax = FromBits<float>(GroupAmax(group).amax_bits);
    const RoundedLanes<float> scale = Nvfp4::BlockScale<float>(amax, args.tensor);
    emulate = scale.magnitude;
    encode = scale.code == 0 ? 0.0f : Nvfp4::EncodeFactor<float>(scale.magnitude, args.tensor);
    decode = Nvfp4::DecodeFactor<float>(scale.magnitude, args.norm.amax);
    if (args.scales != nullptr) {
      args.scales[line * args.scales_stride + index] = static_cast<uint8_t>(scale.code);
    }
    if (args.stats != nullptr) AddScale(*args.stats, scale.magnitude);
  } else {
    const int64_t stride = args.factors.stride;
    const int64_t at =
        columns ? index * stride + line : (line >> args.factors.line_shift) * stride + index;
    encode = args.factors.encode[at];
    emulate = args.factors.emulate[at];
    if (args.stats != nullptr) decode = args.factors.decode[at];
  }
  const bool zero_scale = encode == 0.0f;

  PhiloxWords<uint32_t> random = {};
  if (args.stochastic) {
    const uint64_t block =
        args.first_block + static_cast<uint64_t>(line) * args.copy_row_blocks + index;
    random = RoundingBits<uint32_t>(args.random, static_cast<uint32_t>(block),
                                    static_cast<uint32_t>(block >> 32));
  }

  float error = 0, square = 0;
  for (int i = 0; i < group.size; ++i) {
    const float value = group.value[i];
    const uint32_t byte = (random.word[i / 4] >> (8 * (i % 4))) & 0xffu;
    typename E::Signed code = {0, 0.0f};
    if (!zero_scale) code = E::Round(value * encode, args.stochastic, byte);
    const int64_t along = 16 * index + i;
    if (args.codes != nullptr) {
      uint8_t* row = args.codes + line * args.codes_stride;
      if constexpr (E::kBits == 4) {
        uint8_t& to = row[along / 2];
        to = static_cast<uint8_t>(along % 2 == 0 ? code.code : (to & 0x0fu) | (code.code << 4));
      } else {
        row[along] = static_cast<uint8_t>(code.code);
      }
    }
    if (args.emulated != nullptr) {
      const bool natural = columns && !args.emulated_transposed;
      const int64_t at =
          natural ? along * args.emulated_stride + line : line * args.emulated_stride + along;
      const uint16_t sign = code.code & E::kSignBit ? 0x8000u : 0u;
      args.emulated[at] =
          static_cast<uint16_t>((RoundToBf16Bits<float>(code.magnitude * emulate) >> 16) | sign);
    }
    if (args.stats != nullptr && MagnitudeBits(value) < kInfinity) {
      const float a = FromBits<float>(MagnitudeBits(value)) * args.norm.factor;
      const float d = a - code.magnitude * decode;
      error = error + d * d;
      square = square + a * a;
      if (value != 0.0f) {
        ++args.stats->nonzero;
        if (code.magnitude == 0.0f) ++args.stats->underflow;
      }
      if (MagnitudeBits(value * encode) > E::kMaxBits) ++args.stats->clipped;
    }
  }
  if (args.stats != nullptr) {
    const SplitSum<float> e = SplitGroupSum<float>(error);
    const SplitSum<float> s = SplitGroupSum<float>(square);
    args.stats->error_coarse += e.coarse;
    args.stats->error_fine += e.fine;
    args.stats->square_coarse += s.coarse;
    args.stats->square_fine += s.fine;
  }
}

template <class E>
void EncodePatch(const EncodeArgs& args, bool columns) {
  for (int64_t line = 0; line < Lines(args.x, columns); ++line) {
    for (int64_t group = 0; group < Groups(args.x, columns); ++group) {
      EncodeGroup<E>(args, columns, line, group);
    }
  }
}

}  // namespace

AmaxResult ReferenceAmax(const Patch& x, bool columns) {
  AmaxResult total;
  for (int64_t line = 0; line < Lines(x, columns); ++line) {
    for (int64_t group = 0; group < Groups(x, columns); ++group) {
      const AmaxResult part = GroupAmax(LoadGroup(x, columns, line, group));
      total.amax_bits = std::max(total.amax_bits, part.amax_bits);
      total.non_finite += part.non_finite;
    }
  }
  return total;
}

AmaxResult ReferenceGroupAmax(const Patch& x, bool columns, float* out, int64_t stride) {
  AmaxResult total;
  for (int64_t line = 0; line < Lines(x, columns); ++line) {
    for (int64_t group = 0; group < Groups(x, columns); ++group) {
      const AmaxResult part = GroupAmax(LoadGroup(x, columns, line, group));
      out[columns ? group * stride + line : line * stride + group] =
          FromBits<float>(part.amax_bits);
      total.amax_bits = std::max(total.amax_bits, part.amax_bits);
      total.non_finite += part.non_finite;
    }
  }
  return total;
}

void ReferenceEncode(const EncodeArgs& args, bool columns) {
  switch (args.element) {
    case Element::kE2M1:
      return EncodePatch<E2M1>(args, columns);
    case Element::kE4M3:
      return EncodePatch<E4M3>(args, columns);
    case Element::kE5M2:
      return EncodePatch<E5M2>(args, columns);
  }
}

}  // namespace nibble::cpu
