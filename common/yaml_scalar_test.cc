#include "common/yaml_scalar.h"

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(YamlScalarTest, NumbersWithAnExponentHaveAPoint) {
  EXPECT_EQ(YamlNumber("1e-05"), "1.0e-05");
  EXPECT_EQ(YamlNumber("-1e+20"), "-1.0e+20");
  EXPECT_EQ(YamlNumber("1.5e-08"), "1.5e-08");
  EXPECT_EQ(YamlNumber("42"), "42");
  EXPECT_EQ(YamlNumber("0.25"), "0.25");
}

TEST(YamlScalarTest, StringsThatReadersWouldMisreadNeedQuotes) {
  for (const char* text : {"",      "1",     "1.5",        "1e3",  ".5",   "-1",   "+1",  "0x1f",
                           "1_000", "12:30", "2026-11-22", "~",    "null", "Null", "yes", "No",
                           "on",    "OFF",   "y",          "n",    "true", "nan",  "Inf", ".inf",
                           "=",     "<<",    "- a",        "a: b", "a #b", "a:",   " a",  "a ",
                           "*a",    "&a",    "!a",         "a\nb", "[a]",  "{a}",  "'a'", "a, b"}) {
    EXPECT_FALSE(YamlReadsAsItself(text)) << text;
  }
  for (const char* text : {"a", "train-7", "/data/a.txt", "step:100", "two words", "_x", "nano",
                           "ada@node", "bf16 (reference)"}) {
    EXPECT_TRUE(YamlReadsAsItself(text)) << text;
  }
}

TEST(YamlScalarTest, CharactersThatReadersRefuseOrChangeAreEscaped) {
  EXPECT_EQ(YamlQuoted("a\"b\\c\n\td"), "\"a\\\"b\\\\c\\n\\td\"");
  EXPECT_EQ(YamlQuoted("\x01\x7f\xc2\x85\xc2\x9f"), "\"\\x01\\x7f\\x85\\x9f\"");
  EXPECT_EQ(YamlQuoted("\xe2\x80\xa8\xe2\x80\xa9\xef\xbb\xbf"), "\"\\u2028\\u2029\\ufeff\"");
  EXPECT_EQ(YamlQuoted("naïve → 😀"), "\"naïve → 😀\"");
}

TEST(YamlScalarTest, OnlyPrintableStringsNeedNoEscapes) {
  EXPECT_TRUE(YamlPrintable("two\nlines\twith a tab, naïve → 😀"));
  EXPECT_FALSE(YamlPrintable("a\rb"));
  EXPECT_FALSE(YamlPrintable("a\x7f"));
  EXPECT_FALSE(YamlPrintable("a\xe2\x80\xa8"));
}

}  // namespace
}  // namespace nibble
