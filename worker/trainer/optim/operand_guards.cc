#include "worker/trainer/optim/operand_guards.h"

#include <algorithm>

#include "kernels/tensor/quant_stats.h"

namespace nibble {
namespace {

constexpr int64_t kWordBits = 64;

double FigureOf(OperandGuard guard, const QuantStats& stats) {
  switch (guard) {
    case OperandGuard::kRelativeError:
      return stats.relative_error;
    case OperandGuard::kUnderflow:
      return stats.underflow;
    case OperandGuard::kClipped:
      break;
  }
  return stats.clipped;
}

}  // namespace

std::string_view OperandGuardName(OperandGuard guard) {
  switch (guard) {
    case OperandGuard::kRelativeError:
      return "relative-error";
    case OperandGuard::kUnderflow:
      return "underflow";
    case OperandGuard::kClipped:
      break;
  }
  return "clipped";
}

std::vector<OperandBreach> BreachesOf(OperandGuard guard, std::span<const OperandFigures> figures,
                                      const OperandBounds& bounds) {
  std::vector<OperandBreach> breaches;
  for (const OperandFigures& f : figures) {
    const QuantStats stats = Finish(f.head, f.elements);
    if (stats.non_finite > 0) continue;
    const double value = FigureOf(guard, stats);
    if (value > bounds[guard]) breaches.push_back({f.linear, f.role, value});
  }
  std::stable_sort(
      breaches.begin(), breaches.end(),
      [](const OperandBreach& a, const OperandBreach& b) { return a.value > b.value; });
  return breaches;
}

std::vector<uint64_t> LayerBits(std::span<const OperandBreach> breaches, int64_t linears) {
  std::vector<uint64_t> bits(static_cast<size_t>((linears + kWordBits - 1) / kWordBits));
  for (const OperandBreach& breach : breaches) {
    bits[static_cast<size_t>(breach.linear / kWordBits)] |= uint64_t{1}
                                                            << (breach.linear % kWordBits);
  }
  return bits;
}

std::vector<int64_t> LayersOf(std::span<const uint64_t> bits) {
  std::vector<int64_t> layers;
  for (size_t word = 0; word < bits.size(); ++word) {
    for (int64_t bit = 0; bit < kWordBits; ++bit) {
      if ((bits[word] >> bit & 1) != 0) {
        layers.push_back(static_cast<int64_t>(word) * kWordBits + bit);
      }
    }
  }
  return layers;
}

}  // namespace nibble
