#include "recipe/fields.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FieldRefusal(const std::string& field, const std::string& value) {
  const absl::StatusOr<FieldValue> parsed = ParseField({field, value});
  if (parsed.ok()) return "accepted";
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(parsed.status().message());
}

template <class T>
void ExpectValue(const std::string& field, const std::string& value, const T& expected) {
  const absl::StatusOr<FieldValue> parsed = ParseField({field, value});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const T* held = std::get_if<T>(&parsed->value);
  ASSERT_NE(held, nullptr) << field << "=" << value;
  EXPECT_TRUE(*held == expected) << field << "=" << value;
}

TEST(Fields, NamesAreUniqueAndEveryRowIsDocumented) {
  std::set<std::string> names;
  for (const FieldInfo& field : AllFields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_FALSE(field.values.empty()) << field.name;
    EXPECT_FALSE(field.meaning.empty()) << field.name;
    EXPECT_THAT(field.meaning, Not(HasSubstr("$"))) << field.name;
    EXPECT_EQ(FindField(field.name), &field);
  }
}

TEST(Fields, TheTableHasEveryField) {
  for (const char* name : {"keep",
                           "all",
                           "fprop",
                           "dgrad",
                           "wgrad",
                           "fprop.activation",
                           "fprop.weight",
                           "dgrad.gradient",
                           "dgrad.weight",
                           "wgrad.gradient",
                           "wgrad.activation",
                           "rounding",
                           "gradients.rounding",
                           "fprop.rounding",
                           "wgrad.gradient.rounding",
                           "hadamard",
                           "fprop.hadamard",
                           "hadamard.signs",
                           "weights.block",
                           "fprop.weight.block",
                           "formula"}) {
    EXPECT_NE(FindField(name), nullptr) << name;
  }
}

TEST(Fields, HelpNamesEveryFieldWithItsMeaningAndValues) {
  const std::string help = FieldsHelp();
  for (const FieldInfo& field : AllFields()) {
    EXPECT_THAT(help, HasSubstr("  " + field.name + " "));
    EXPECT_THAT(help, HasSubstr(field.meaning));
    EXPECT_THAT(help, HasSubstr(field.values));
  }
}

TEST(Fields, EveryAllowedValueIsAccepted) {
  for (const FieldInfo& field : AllFields()) {
    std::string values = field.values + ", ";
    int count = 0;
    for (size_t at; (at = values.find(", ")) != std::string::npos; values = values.substr(at + 2)) {
      std::string value = values.substr(0, at);
      if (value == "F+L") value = "2+8";
      if (value == "seeded:N") value = "seeded:17";
      EXPECT_EQ(FieldRefusal(field.name, value), "accepted") << field.name << "=" << value;
      ++count;
    }
    EXPECT_GE(count, 3) << field.name;
  }
}

TEST(Fields, ValuesAreParsed) {
  ExpectValue("fprop", "bf16", std::optional<Format>());
  ExpectValue("fprop.weight", "mxfp8", std::optional<Format>(Format::kMxfp8));
  ExpectValue("all", "default", FieldDefault());
  ExpectValue("keep", "2+8", KeepBlocks{2, 8});
  ExpectValue("keep", "none", KeepBlocks{0, 0});
  ExpectValue("gradients.rounding", "stochastic", Rounding::kStochastic);
  ExpectValue("weights.block", "16x16", BlockShape{16, 16});
  ExpectValue("activations.block", "1xall", BlockShape{1, BlockShape::kWhole});
  ExpectValue("hadamard", "off", HadamardSize{0});
  ExpectValue("hadamard", "2", HadamardSize{2});
  ExpectValue("hadamard", "128", HadamardSize{128});
  ExpectValue("hadamard.signs", "seeded:18446744073709551615",
              SignSetting{SignChoice::kSeeded, 18446744073709551615u});
  ExpectValue("hadamard.signs", "none", SignSetting{SignChoice::kNone, 0});
  ExpectValue("formula", "te-pre-2.14", FormulaVersion::kTePre2_14);
}

TEST(Fields, AnInvalidValueIsReportedWithTheAllowedAndTheNearestOnes) {
  EXPECT_THAT(FieldRefusal("fprop", "nvfp5"),
              AllOf(HasSubstr("fprop"), HasSubstr("'nvfp5'"), HasSubstr("nearest: 'nvfp4'"),
                    HasSubstr("mxfp8")));
  EXPECT_THAT(FieldRefusal("wgrad", "defualt"), HasSubstr("nearest: 'default'"));
  EXPECT_THAT(FieldRefusal("hadamard", "24"), HasSubstr("'24' is not known; nearest: '16'"));
  for (const auto& [field, value] :
       {std::pair{"hadamard", "24"}, std::pair{"hadamard", "256"}, std::pair{"hadamard", "1"},
        std::pair{"hadamard", "0"}, std::pair{"rounding", "up"}, std::pair{"weights.block", "2x16"},
        std::pair{"weights.block", "16x"}, std::pair{"hadamard.signs", "seeded:"},
        std::pair{"hadamard.signs", "seeded:-1"}, std::pair{"hadamard.signs", "seeded:1x"},
        std::pair{"formula", "te-2"}, std::pair{"keep", "2"}, std::pair{"keep", "2+"},
        std::pair{"keep", "-1+8"}, std::pair{"keep", "99999999999999999999+1"},
        std::pair{"all", ""}}) {
    EXPECT_THAT(FieldRefusal(field, value),
                AllOf(HasSubstr(field), HasSubstr("'" + std::string(value) + "'"),
                      HasSubstr("allowed: " + FindField(field)->values)));
  }
}

TEST(Fields, AnUnknownFieldIsReportedWithTheNearestOne) {
  EXPECT_THAT(FieldRefusal("fprp", "bf16"),
              AllOf(HasSubstr("'fprp'"), HasSubstr("nearest: 'fprop'"), HasSubstr("wgrad")));
  EXPECT_THAT(FieldRefusal("gradient.rounding", "nearest"),
              HasSubstr("nearest: 'gradients.rounding'"));
  EXPECT_THAT(FieldRefusal("zzzzzzzzzzzz", "1"), Not(HasSubstr("nearest")));
  // A transform belongs to a GEMM: its operands cannot have different ones.
  EXPECT_THAT(FieldRefusal("wgrad.gradient.hadamard", "16"), HasSubstr("not known"));
}

TEST(Fields, SettingsSplitAtTheFirstEqualsSign) {
  EXPECT_EQ(*SplitFieldSetting("fprop=bf16"), (FieldSetting{"fprop", "bf16"}));
  EXPECT_EQ(*SplitFieldSetting("a=b=c"), (FieldSetting{"a", "b=c"}));
  for (const char* bad : {"", "fprop", "=bf16", "fprop="}) {
    EXPECT_THAT(std::string(SplitFieldSetting(bad).status().message()),
                HasSubstr("is not FIELD=VALUE"));
  }
}

}  // namespace
}  // namespace nibble
