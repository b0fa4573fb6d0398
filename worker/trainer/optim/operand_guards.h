// Guards on the quantised operands of linear layers: which operands' figures are above their bounds
// in a sampled step. The caller decides what to do about them.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_OPTIM_OPERAND_GUARDS_H_
#define NIBBLE_WORKER_TRAINER_OPTIM_OPERAND_GUARDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "worker/trainer/model/linear.h"

namespace nibble {

enum class OperandGuard : uint8_t { kRelativeError, kUnderflow, kClipped };
inline constexpr std::array<OperandGuard, 3> kOperandGuards = {
    OperandGuard::kRelativeError, OperandGuard::kUnderflow, OperandGuard::kClipped};
// "relative-error"
std::string_view OperandGuardName(OperandGuard guard);

// Figures above these are breaches; infinity: the guard is off.
struct OperandBounds {
  std::array<double, kOperandGuards.size()> above = {std::numeric_limits<double>::infinity(),
                                                     std::numeric_limits<double>::infinity(),
                                                     std::numeric_limits<double>::infinity()};
  double& operator[](OperandGuard guard) { return above[static_cast<size_t>(guard)]; }
  double operator[](OperandGuard guard) const { return above[static_cast<size_t>(guard)]; }
};

struct OperandBreach {
  int64_t linear = 0;  // index in Outline::linears
  OperandRole role = OperandRole::kFpropActivation;
  double value = 0;
  friend bool operator==(const OperandBreach&, const OperandBreach&) = default;
};

// The operands above a guard's bound, the largest value first; equal values in the order of the
// figures. An operand with NaN or infinities has no breach: its step is not finite.
std::vector<OperandBreach> BreachesOf(OperandGuard guard, std::span<const OperandFigures> figures,
                                      const OperandBounds& bounds);

// Layers as bits: word l / 64, bit l % 64. For the exchange between ranks.
std::vector<uint64_t> LayerBits(std::span<const OperandBreach> breaches, int64_t linears);
// Their indices, ascending.
std::vector<int64_t> LayersOf(std::span<const uint64_t> bits);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_OPTIM_OPERAND_GUARDS_H_
