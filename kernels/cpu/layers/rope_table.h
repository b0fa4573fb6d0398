// Cosines and sines of rotary angles by position, from angles in FP64, computed once; the table
// grows with the longest sequence.
//
// Ownership: owns its numbers; the result of At is valid until the next call. Thread-safety: one
// thread at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ROPE_TABLE_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ROPE_TABLE_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace nibble::cpu {

class RopeTable {
 public:
  struct Angles {
    const float* cosines;  // [positions, half]
    const float* sines;
  };

  // Position p, pair i of `half`: angle p · theta^(−i/half).
  Angles At(int half, double theta, int64_t positions) {
    Columns& columns = columns_[{half, theta}];
    int64_t have = static_cast<int64_t>(columns.cosines.size()) / half;
    if (have < positions) {
      std::vector<double> rates(half);
      for (int i = 0; i < half; ++i) rates[i] = std::pow(theta, -static_cast<double>(i) / half);
      columns.cosines.resize(positions * half);
      columns.sines.resize(positions * half);
      for (; have < positions; ++have) {
        for (int i = 0; i < half; ++i) {
          const double angle = static_cast<double>(have) * rates[i];
          columns.cosines[have * half + i] = static_cast<float>(std::cos(angle));
          columns.sines[have * half + i] = static_cast<float>(std::sin(angle));
        }
      }
    }
    return {columns.cosines.data(), columns.sines.data()};
  }

 private:
  struct Columns {
    std::vector<float> cosines, sines;
  };
  std::map<std::pair<int, double>, Columns> columns_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ROPE_TABLE_H_
