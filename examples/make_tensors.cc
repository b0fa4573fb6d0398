// Writes a safetensors file with the three kinds of tensors that training quantises, drawn from
// fixed seeds: a weight (normal), an activation (normal with a few loud channels), a gradient
// (tiny, heavy tailed): input for `nibble quantize`.
#include <cstdio>
#include <random>
#include <vector>

#include "common/safetensors/writer.h"

namespace {

constexpr int64_t kRows = 512;
constexpr int64_t kCols = 1024;

std::vector<float> Weight() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> Activation() {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(kRows * kCols);
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    values[i] = normal(random) * (i % kCols % 173 == 0 ? 20.0f : 1.0f);
  }
  return values;
}

std::vector<float> Gradient() {
  std::mt19937_64 random(3);
  std::student_t_distribution<float> heavy(3.0f);
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = 1e-5f * heavy(random);
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_tensors OUT.safetensors\n");
    return 2;
  }
  nibble::SafetensorsWriter writer;
  const std::pair<const char*, std::vector<float>> tensors[] = {
      {"weight", Weight()}, {"activation", Activation()}, {"gradient", Gradient()}};
  absl::Status status;
  for (const auto& [name, values] : tensors) {
    status.Update(writer.AddTensor(
        name, nibble::FileDType::kF32, {kRows, kCols},
        {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)}));
  }
  status.Update(writer.Write(argv[1]));
  if (!status.ok()) {
    std::fprintf(stderr, "make_tensors: %s\n", std::string(status.message()).c_str());
    return 1;
  }
}
