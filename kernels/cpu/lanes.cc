// The lane kernels of one instruction set, NIBBLE_ISA with vectors of NIBBLE_FLOATS; BUILD compiles
// this file once for each, with its compiler flags. Only headers whose functions are all forced
// inline may be included, or the linker could hand this file's instructions to others.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lane_kernels.h"

#define NIBBLE_TEXT_(word) #word
#define NIBBLE_TEXT(word) NIBBLE_TEXT_(word)

namespace nibble::cpu {
namespace NIBBLE_ISA {

#if NIBBLE_FLOATS == 1
using Widest = float;
#else
using Widest = LaneVector<NIBBLE_FLOATS>::F;
#endif

#include "kernels/cpu/lane_tile.inc"
// Each step builds on the previous ones.
#include "kernels/cpu/lane_amax.inc"
#include "kernels/cpu/lane_encode.inc"
#include "kernels/cpu/lane_hadamard.inc"
#include "kernels/cpu/lane_operand.inc"
#include "kernels/cpu/lane_operand_columns.inc"
#include "kernels/cpu/lane_operand_rows.inc"

template <class F, class Format, bool kStochastic, bool kColumns>
uint32_t OperandPatch(const EncodeArgs& args) {
  if constexpr (!kColumns) {
    return args.x.bf16 ? OperandRowPatch<F, Format, kStochastic, true>(args)
                       : OperandRowPatch<F, Format, kStochastic, false>(args);
  } else {
    if constexpr (Format::kScale == ScaleKind::kE4M3) {
      if (args.x.hadamard16) return OperandTransformedPatch<F, Format, kStochastic>(args);
    }
    return args.x.bf16 ? OperandColumnPatch<F, Format, kStochastic, true>(args)
                       : OperandColumnPatch<F, Format, kStochastic, false>(args);
  }
}

template <class F, bool kColumns>
uint32_t Operand(const EncodeArgs& args) {
  const auto rounded = [&]<class E, ScaleKind kScale>() {
    using Format = OperandFormat<E, kScale>;
    const uint32_t seen = args.stochastic ? OperandPatch<F, Format, true, kColumns>(args)
                                          : OperandPatch<F, Format, false, kColumns>(args);
    if (args.stream) FenceStreams();
    return seen;
  };
  switch (args.blocks.scale) {
    case ScaleKind::kE4M3:
      return rounded.template operator()<E2M1, ScaleKind::kE4M3>();
    case ScaleKind::kE8M0:
      return args.element == Element::kE2M1 ? rounded.template operator()<E2M1, ScaleKind::kE8M0>()
                                            : rounded.template operator()<E4M3, ScaleKind::kE8M0>();
    case ScaleKind::kF32:
      break;
  }
  return args.element == Element::kE2M1   ? rounded.template operator()<E2M1, ScaleKind::kF32>()
         : args.element == Element::kE4M3 ? rounded.template operator()<E4M3, ScaleKind::kF32>()
                                          : rounded.template operator()<E5M2, ScaleKind::kF32>();
}

// Null for vectors of one lane.
template <class F, bool kColumns>
constexpr uint32_t (*OperandKernel())(const EncodeArgs&) {
  if constexpr (kLanesOf<F> != 1) return Operand<F, kColumns>;
  return nullptr;
}

constexpr LaneKernels kKernels = {
    .name = NIBBLE_TEXT(NIBBLE_ISA),
    .lanes = kLanesOf<Widest>,
    .amax_rows = AmaxRows<Widest>,
    .amax_columns = AmaxColumns<Widest>,
    .group_amax_rows = GroupAmaxRows<Widest>,
    .group_amax_columns = GroupAmaxColumns<Widest>,
    .encode_rows = Encode<Widest, false>,
    .encode_columns = Encode<Widest, true>,
    .operand_rows = OperandKernel<Widest, false>(),
    .operand_columns = OperandKernel<Widest, true>(),
    .hadamard_rows = HadamardRows,
    .hadamard_columns = HadamardColumns<Widest>,
};

}  // namespace NIBBLE_ISA

constinit const LaneKernels LaneKernels::NIBBLE_ISA = NIBBLE_ISA::kKernels;

}  // namespace nibble::cpu
