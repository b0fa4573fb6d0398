#include "client/local/quantize_file.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "client/local/local_commands.h"
#include "client/shell/testing.h"
#include "common/safetensors/reader.h"
#include "common/safetensors/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/minifloat.h"
#include "kernels/formats/scaling.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

std::string TempPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

std::vector<float> Normal(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

template <class T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> Read(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<T> values(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

// A file with one [rows, cols] F32 tensor "w".
std::string WriteInput(const std::string& name, const std::vector<float>& values, int64_t rows,
                       int64_t cols, const std::string& tensor = "w") {
  SafetensorsWriter writer;
  const std::string path = TempPath(name);
  EXPECT_TRUE(writer.AddTensor(tensor, FileDType::kF32, {rows, cols}, BytesOf(values)).ok());
  EXPECT_TRUE(writer.Write(path).ok());
  return path;
}

QuantizeFileOptions Options(const std::string& in, const std::string& out, Format format) {
  QuantizeFileOptions options;
  options.input = in;
  options.output = TempPath(out);
  options.spec = OperandSpec::Of(format);
  std::filesystem::remove(options.output);
  return options;
}

TEST(QuantizeFile, OutputsFollowTheScaleFormulaElementByElement) {
  const std::vector<float> x = Normal(32 * 48, 1);
  const QuantizeFileOptions options = Options(WriteInput("in1", x, 32, 48), "out1", Format::kNvfp4);
  const absl::StatusOr<QuantizeFileReport> report = QuantizeFile(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const SafetensorsFile file = *SafetensorsFile::Open(options.output);
  const std::vector<uint8_t> codes = Read<uint8_t>(file, "w.codes");
  const std::vector<uint8_t> scales = Read<uint8_t>(file, "w.scales");
  const std::vector<float> amax = Read<float>(file, "w.amax");
  const std::vector<float> values = Read<float>(file, "w.dequantized");
  const std::vector<uint16_t> emulated = Read<uint16_t>(file, "w.emulated");
  EXPECT_EQ(file.Find("w.codes")->shape, (std::vector<int64_t>{32, 24}));
  EXPECT_EQ(file.Find("w.scales")->shape, (std::vector<int64_t>{32, 3}));
  EXPECT_EQ(file.Find("w.scales")->dtype, FileDType::kF8E4M3);
  ASSERT_EQ(amax.size(), 1u);
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  EXPECT_EQ(amax[0], largest);
  for (size_t i = 0; i < x.size(); ++i) {
    const float scale = E4M3::Decode<float>(scales[i / 16]);
    const uint32_t code = (codes[i / 2] >> (4 * (i % 2))) & 15u;
    const float element = E2M1::Decode<float>(code);
    ASSERT_EQ(values[i], element * ((scale * largest) * (1.0f / 2688.0f))) << i;
    ASSERT_EQ(DecodeBf16(emulated[i]), element * scale) << i;
    ASSERT_LE(std::abs(values[i] - x[i]), scale * largest / 2688.0f * 1.01f) << i;
  }
}

TEST(QuantizeFile, TransposeWritesTheTransposedShapes) {
  const std::vector<float> x = Normal(32 * 48, 2);
  std::vector<float> turned(x.size());
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 48; ++j) turned[j * 32 + i] = x[i * 48 + j];
  }
  QuantizeFileOptions options = Options(WriteInput("in2", x, 32, 48), "out2", Format::kNvfp4);
  options.transpose = true;
  options.spec.hadamard.size = 16;
  QuantizeFileOptions plain = Options(WriteInput("in2t", turned, 48, 32), "out2t", Format::kNvfp4);
  plain.spec.hadamard.size = 16;
  ASSERT_TRUE(QuantizeFile(options).ok());
  ASSERT_TRUE(QuantizeFile(plain).ok());
  const SafetensorsFile a = *SafetensorsFile::Open(options.output);
  const SafetensorsFile b = *SafetensorsFile::Open(plain.output);
  for (const char* name : {"w.codes", "w.scales", "w.amax", "w.dequantized", "w.emulated"}) {
    EXPECT_EQ(a.Find(name)->shape, b.Find(name)->shape) << name;
    EXPECT_EQ(Read<uint8_t>(a, name), Read<uint8_t>(b, name)) << name;
  }
}

TEST(QuantizeFile, EveryFormatWritesScalesOfItsKind) {
  const std::string in = WriteInput("in3", Normal(128 * 256, 3), 128, 256);
  for (const FormatInfo& format : AllFormats()) {
    for (const BlockShape& block : format.shapes) {
      QuantizeFileOptions options = Options(in, "out3", format.format);
      options.spec.block = block;
      const absl::StatusOr<QuantizeFileReport> report = QuantizeFile(options);
      ASSERT_TRUE(report.ok()) << format.name << ": " << report.status();
      EXPECT_LT(report->tensors[0].stats.relative_error, 0.35) << format.name;
      EXPECT_GT(report->tensors[0].stats.relative_error, 0.005) << format.name;
      const SafetensorsFile file = *SafetensorsFile::Open(options.output);
      const int64_t rows = block.rows == 0 ? 1 : 128 / block.rows;
      const int64_t cols = block.cols == 0 ? 1 : 256 / block.cols;
      EXPECT_EQ(file.Find("w.scales")->shape, (std::vector<int64_t>{rows, cols})) << format.name;
      const FileDType dtype = format.scale == ScaleKind::kE4M3   ? FileDType::kF8E4M3
                              : format.scale == ScaleKind::kE8M0 ? FileDType::kU8
                                                                 : FileDType::kF32;
      EXPECT_EQ(file.Find("w.scales")->dtype, dtype) << format.name;
      EXPECT_EQ(file.Find("w.emulated") != nullptr, format.exact_in_bf16) << format.name;
    }
  }
}

TEST(QuantizeFile, NonFiniteValuesAreCounted) {
  std::vector<float> x = Normal(16 * 32, 4);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[77] = std::numeric_limits<float>::infinity();
  const absl::StatusOr<QuantizeFileReport> report =
      QuantizeFile(Options(WriteInput("in4", x, 16, 32), "out4", Format::kNvfp4));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors[0].stats.non_finite, 2u);
}

TEST(QuantizeFile, AGivenAmaxIsUsedAndStatisticsStayRight) {
  std::vector<float> x(32 * 16, 1.0f);
  QuantizeFileOptions options = Options(WriteInput("in5", x, 32, 16), "out5", Format::kNvfp4);
  options.amax = 0.001f;  // far too small: everything clips at its top
  const absl::StatusOr<QuantizeFileReport> report = QuantizeFile(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors[0].stats.amax, 0.001f);
  EXPECT_EQ(report->tensors[0].stats.clipped, 1.0);
  EXPECT_NEAR(report->tensors[0].stats.relative_error, 0.999, 1e-4);
}

TEST(QuantizeFile, AnAmaxOfMinusZeroIsZero) {
  const std::string in = WriteInput("in8", std::vector<float>(32 * 16, 1.0f), 32, 16);
  for (const float amax : {0.0f, -0.0f}) {
    QuantizeFileOptions options = Options(in, "out8", Format::kNvfp4);
    options.amax = amax;
    const absl::StatusOr<QuantizeFileReport> report = QuantizeFile(options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->tensors[0].stats.relative_error, 1) << amax;
    const auto file = SafetensorsFile::Open(options.output);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE(std::signbit(Read<float>(*file, "w.amax")[0])) << amax;
    EXPECT_FALSE(std::signbit(Read<float>(*file, "w.dequantized")[0])) << amax;
  }
}

struct Refusal {
  const char* name;
  std::function<void(QuantizeFileOptions&)> change;
  const char* says;
};

TEST(QuantizeFile, InvalidOptionsAreRefusedByNameAndLeaveNoOutput) {
  const std::string in = WriteInput("in6", Normal(32 * 40, 6), 32, 40);
  const Refusal refusals[] = {
      {"shape", [](auto&) {},
       "none of its 1 tensors can be quantised; 'w': columns = 40 is not a multiple of the block"},
      {"block",
       [](auto& o) {
         o.spec.block = {128, 128};
       },
       "block: 128x128"},
      {"hadamard", [](auto& o) { o.spec.hadamard.size = 24; }, "hadamard: size 24"},
      {"large hadamard", [](auto& o) { o.spec.hadamard.size = 256; }, "hadamard: size 256"},
      {"amax", [](auto& o) { o.amax = NAN; }, "amax: nan"},
      {"negative amax", [](auto& o) { o.amax = -1.0f; }, "amax: -1"},
      {"threads", [](auto& o) { o.threads = -3; }, "threads: -3"},
      {"input", [](auto& o) { o.input = "/nonexistent/file"; }, "/nonexistent/file"},
  };
  for (const Refusal& refusal : refusals) {
    QuantizeFileOptions options = Options(in, "out6", Format::kNvfp4);
    refusal.change(options);
    const absl::Status status = QuantizeFile(options).status();
    EXPECT_FALSE(status.ok()) << refusal.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.says)) << refusal.name;
    EXPECT_FALSE(std::filesystem::exists(options.output)) << refusal.name;
  }
}

TEST(QuantizeFile, HalfPrecisionIsQuantisedAsTheSameNumbersInF32) {
  std::vector<_Float16> halves;
  std::vector<float> floats;
  for (const float x : Normal(32 * 48, 9)) {
    halves.push_back(static_cast<_Float16>(x));
    floats.push_back(static_cast<float>(halves.back()));
  }
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddTensor("w", FileDType::kF16, {32, 48}, BytesOf(halves)).ok());
  ASSERT_TRUE(writer.Write(TempPath("in9")).ok());
  const auto options = Options(TempPath("in9"), "out9", Format::kNvfp4);
  const auto wide = Options(WriteInput("in9f", floats, 32, 48), "out9f", Format::kNvfp4);
  ASSERT_TRUE(QuantizeFile(options).ok());
  ASSERT_TRUE(QuantizeFile(wide).ok());
  const SafetensorsFile a = *SafetensorsFile::Open(options.output);
  const SafetensorsFile b = *SafetensorsFile::Open(wide.output);
  for (const char* name : {"w.codes", "w.scales", "w.amax", "w.dequantized", "w.emulated"}) {
    EXPECT_EQ(Read<uint8_t>(a, name), Read<uint8_t>(b, name)) << name;
  }
}

TEST(QuantizeFile, OtherTensorsAreCopiedWithAReason) {
  const std::vector<float> x = Normal(32 * 48, 10);
  const std::vector<int64_t> ids = {3, 1, 4, 1, 5, 9};
  SafetensorsWriter writer;
  ASSERT_TRUE(writer.AddTensor("bias", FileDType::kF32, {32 * 48}, BytesOf(x)).ok());
  ASSERT_TRUE(writer.AddTensor("ids", FileDType::kI64, {2, 3}, BytesOf(ids)).ok());
  ASSERT_TRUE(writer.AddTensor("odd", FileDType::kF32, {48 * 4, 8}, BytesOf(x)).ok());
  ASSERT_TRUE(writer.AddTensor("w", FileDType::kF32, {32, 48}, BytesOf(x)).ok());
  ASSERT_TRUE(writer.Write(TempPath("in10")).ok());
  const auto options = Options(TempPath("in10"), "out10", Format::kNvfp4);
  const absl::StatusOr<QuantizeFileReport> report = QuantizeFile(options);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->tensors.size(), 1u);
  std::map<std::string, std::string> reasons;
  for (const CopiedTensorReport& tensor : report->copied) reasons[tensor.name] = tensor.reason;
  ASSERT_EQ(reasons.size(), 3u);
  EXPECT_EQ(reasons["bias"], "has 1 dimensions, not 2");
  EXPECT_EQ(reasons["ids"], "is I64, not F32, BF16 or F16");
  EXPECT_THAT(reasons["odd"], HasSubstr("columns = 8 is not a multiple of the block 16"));
  const SafetensorsFile file = *SafetensorsFile::Open(options.output);
  EXPECT_EQ(Read<float>(file, "bias"), x);
  EXPECT_EQ(Read<int64_t>(file, "ids"), ids);
  EXPECT_EQ(Read<float>(file, "odd"), x);
  EXPECT_EQ(file.Find("odd")->shape, (std::vector<int64_t>{48 * 4, 8}));
  EXPECT_NE(file.Find("w.codes"), nullptr);
  EXPECT_EQ(file.Find("w"), nullptr);
}

TEST(QuantizeFile, ANaNAmongEarlierScalesIsRefused) {
  SafetensorsWriter writer;
  const std::vector<float> x = Normal(16 * 16, 7);
  std::vector<uint8_t> scales(16, 0x38);
  scales[11] = 0x7f;
  ASSERT_TRUE(writer.AddTensor("a", FileDType::kF32, {16, 16}, BytesOf(x)).ok());
  ASSERT_TRUE(writer.AddTensor("a.scales", FileDType::kF8E4M3, {16, 1}, BytesOf(scales)).ok());
  ASSERT_TRUE(writer.Write(TempPath("in7")).ok());
  const QuantizeFileOptions options = Options(TempPath("in7"), "out7", Format::kNvfp4);
  EXPECT_THAT(std::string(QuantizeFile(options).status().message()),
              HasSubstr("tensor 'a.scales': scale number 11 is NaN"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

TEST(QuantizeFile, ATruncatedFileIsRefusedAtEveryLength) {
  const std::string in = WriteInput("in8", Normal(16 * 16, 8), 16, 16);
  std::ifstream stream(in, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  for (size_t length = 0; length < whole.size(); length += 7) {
    std::ofstream(TempPath("in8cut"), std::ios::binary) << whole.substr(0, length);
    const QuantizeFileOptions options = Options(TempPath("in8cut"), "out8", Format::kNvfp4);
    ASSERT_FALSE(QuantizeFile(options).ok()) << length;
    ASSERT_FALSE(std::filesystem::exists(options.output)) << length;
  }
}

class QuantizeCommandTest : public testing::Test {
 protected:
  QuantizeCommandTest() {
    const std::vector<float> values(32, 1.5f);
    SafetensorsWriter writer;
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    EXPECT_TRUE(writer.AddTensor("w", FileDType::kF32, {2, 16}, {bytes, 128}).ok());
    EXPECT_TRUE(writer.AddTensor("bias", FileDType::kF32, {32}, {bytes, 128}).ok());
    EXPECT_TRUE(writer.Write(in_).ok());
  }

  Outcome Quantize(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"quantize", in_, out_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCommand(AddQuantizeCommand, arguments);
  }

  const std::string in_ = testing::TempDir() + "quantize_in.safetensors";
  const std::string out_ = testing::TempDir() + "quantize_out.safetensors";
};

TEST_F(QuantizeCommandTest, TheReportIsATableJsonOrYaml) {
  const Outcome table = Quantize({"--format", "nvfp4"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("rel.error"));
  EXPECT_THAT(table.err, HasSubstr("tensor 'bias' is copied: has 1 dimensions, not 2"));
  const Outcome json = Quantize({"--format", "nvfp4", "-o", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json report = Json::parse(json.out);
  EXPECT_EQ(report["tensors"][0]["name"], "w");
  EXPECT_EQ(report["tensors"][0]["amax"], 1.5);
  ASSERT_EQ(report["copied"].size(), 1u);
  EXPECT_EQ(report["copied"][0]["name"], "bias");
  EXPECT_EQ(report["copied"][0]["reason"], "has 1 dimensions, not 2");
  const Outcome yaml = Quantize({"--format", "nvfp4", "-o", "yaml"});
  ASSERT_EQ(yaml.exit_code, 0) << yaml.err;
  EXPECT_EQ(JsonOfYaml(yaml.out), report);
}

TEST_F(QuantizeCommandTest, NamesOfTensorsCannotControlTheTerminal) {
  WriteInput("quantize_in.safetensors", Normal(32 * 16, 3), 32, 16, "a\n\x1b[31m\u00e9");
  const Outcome table = Quantize({"--format", "nvfp4"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\na\\n\\033[31m\u00e9 "));
  EXPECT_EQ(table.out.find('\x1b'), std::string::npos);
}

TEST_F(QuantizeCommandTest, ValuesThatAnOptionDoesNotTakeAreUsageErrors) {
  const auto problem = [this](std::vector<std::string> words) {
    words.insert(words.begin(), {"--format", "nvfp4"});
    const Outcome outcome = Quantize(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    return outcome.err;
  };
  EXPECT_EQ(Quantize({"--format", "nvfp5"}).exit_code, 2);
  EXPECT_THAT(Quantize({"--format", "nvfp5"}).err, HasSubstr("nvfp5 not in {nvfp4,mxfp4"));
  problem({"-o", "xml"});
  EXPECT_THAT(problem({"--block", "0x0"}), HasSubstr("'0x0' is not ROWSxCOLUMNS"));
  EXPECT_THAT(problem({"--hadamard", "3"}), HasSubstr("3 not in {0,2,4"));
  EXPECT_THAT(problem({"--signs", "0x"}), HasSubstr("'0x' is neither fixed"));
  EXPECT_THAT(problem({"--amax", "1e308"}), HasSubstr("'1e308'; allowed: numbers, 0 to"));
  EXPECT_THAT(problem({"--amax", "nan"}), HasSubstr("'nan'; allowed"));
  EXPECT_THAT(problem({"--seed", "-1"}), HasSubstr("'-1'; allowed: whole numbers, 0 to"));
  EXPECT_THAT(problem({"--threads", "1025"}), HasSubstr("allowed: whole numbers, 0 to 1024"));
}

TEST_F(QuantizeCommandTest, SignsWithoutATransformAreRefusedRatherThanIgnored) {
  const Outcome outcome = Quantize({"--format", "nvfp4", "--signs", "0xffff"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("signs: '0xffff' without a transform; give its size"));
}

TEST_F(QuantizeCommandTest, AMissingInputHasItsOwnExitCode) {
  std::filesystem::remove(in_);
  EXPECT_EQ(Quantize({"--format", "nvfp4"}).exit_code, 102);
}

}  // namespace
}  // namespace nibble
