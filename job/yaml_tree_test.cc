#include "job/yaml_tree.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr YamlLimits kLimits = {size_t{1} << 20, 16, 1000};

absl::StatusOr<YamlNode> Read(std::string_view text) { return ReadYaml(text, kLimits); }

std::string YamlError(std::string_view text) {
  const absl::StatusOr<YamlNode> node = Read(text);
  EXPECT_EQ(node.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(node.status().message());
}

TEST(YamlReadTest, KeepsOrderLinesAndText) {
  const auto root = Read("b: 1\n# comment\na:\n  - x\n  - {c: 'off'}\n");
  ASSERT_TRUE(root.ok()) << root.status();
  ASSERT_EQ(root->keys.size(), 2u);
  EXPECT_EQ(root->keys[0].text, "b");
  EXPECT_EQ(root->keys[1].line, 3);
  EXPECT_EQ(root->items[0].text, "1");
  const YamlNode& list = root->items[1];
  EXPECT_EQ(list.kind, YamlNode::Kind::kList);
  EXPECT_EQ(list.items[0].line, 4);
  EXPECT_FALSE(list.items[0].quoted);
  EXPECT_TRUE(list.items[1].items[0].quoted);
}

TEST(YamlReadTest, AnEmptyDocumentIsNull) {
  for (const char* text : {"", "   \n\n", "# only a comment\n", "---\n", "---\n...\n", "~"}) {
    const auto root = Read(text);
    ASSERT_TRUE(root.ok()) << text << root.status();
    EXPECT_EQ(root->kind, YamlNode::Kind::kNull) << text;
  }
}

TEST(YamlReadTest, DuplicateKeysAreKept) {
  const auto root = Read("a: 1\na: 2\n");
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(root->keys.size(), 2u);
}

TEST(YamlReadTest, AliasesAreRefused) {
  EXPECT_THAT(YamlError("a: &x [1]\nb: *x\n"), HasSubstr("line 2: aliases (*name)"));
  EXPECT_THAT(YamlError("pattern: *-*-\n"), HasSubstr("line 1: aliases (*name)"));
  const std::string bomb =
      "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\n";
  EXPECT_THAT(YamlError(bomb), HasSubstr("line 2: aliases"));
}

TEST(YamlReadTest, TagsAndNonTextKeysAreRefused) {
  EXPECT_THAT(YamlError("a: !!int 3\n"), HasSubstr("tags"));
  EXPECT_THAT(YamlError("a: !x {b: c}\n"), HasSubstr("tags"));
  EXPECT_THAT(YamlError("[a, b]: c\n"), HasSubstr("key of a map must be text"));
  EXPECT_THAT(YamlError("~: c\n"), HasSubstr("key of a map must be text"));
}

TEST(YamlReadTest, ASecondDocumentIsRefused) {
  EXPECT_THAT(YamlError("a: 1\n---\nb: 2\n"), HasSubstr("second document"));
}

TEST(YamlReadTest, InvalidYamlIsRefusedWithItsLine) {
  EXPECT_THAT(YamlError("a: 1\nb: [1, 2\n"), HasSubstr("not YAML"));
  EXPECT_THAT(YamlError("a: 1\n b: 2\nc: 'open\n"), HasSubstr("line "));
  EXPECT_THAT(YamlError("a: \"\\q\"\n"), HasSubstr("line 1: not YAML"));
}

TEST(YamlReadTest, DeepNestingIsRefused) {
  EXPECT_THAT(YamlError(std::string(17, '[') + std::string(17, ']')),
              HasSubstr("nested deeper than 16 levels"));
  EXPECT_THAT(YamlError(std::string(500'000, '[')), HasSubstr("line 1: "));
  EXPECT_THAT(YamlError(std::string(500'000, '{')), HasSubstr("line 1: "));
  std::string dashes;
  for (int i = 0; i < 100'000; ++i) dashes += "- ";
  EXPECT_THAT(YamlError(dashes + "a"), HasSubstr("nested deeper than 16 levels"));
  EXPECT_TRUE(Read(std::string(16, '[') + std::string(16, ']')).ok());
}

TEST(YamlReadTest, TextOverTheSizeLimitIsOutOfRange) {
  const auto root = ReadYaml("a: bcd", {5, 16, 1000});
  EXPECT_EQ(root.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(root.status().message(), "the text has 6 bytes; 5 are allowed");
}

TEST(YamlReadTest, DocumentsWithTooManyValuesAreRefused) {
  std::string list = "[";
  for (int i = 0; i < 999; ++i) list += "1,\n";
  EXPECT_TRUE(Read(list + "]").ok());
  EXPECT_EQ(YamlError(list + "1]"), "line 1: more than 1000 keys and values");
}

TEST(YamlReadTest, ControlCharactersAndOtherEncodingsAreRefused) {
  // The parser would take 0x04 for the end of the input and ignore the rest.
  EXPECT_THAT(YamlError("a: 1\nb: \x04\nc: 2\n"), HasSubstr("line 2: control character 0x04"));
  EXPECT_THAT(YamlError(std::string_view("a\0b", 3)), HasSubstr("0x00"));
  EXPECT_THAT(YamlError("a: \xff\xfe\n"), HasSubstr("not UTF-8"));
}

TEST(Utf8Test, DistinguishesValidFromInvalid) {
  EXPECT_TRUE(IsUtf8("aé€𝄞"));
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xe2\x82", "\xf8\x88\x80\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(bad));
  }
}

TEST(YamlWriteTest, WritesBlocksIndentedByTwo) {
  YamlNode inner = YamlNode::Map();
  inner.Put("path", YamlNode::Text("a b.txt")).Put("weight", YamlNode::Plain("2"));
  YamlNode list = YamlNode::List();
  list.items = {inner, YamlNode::Text("plain")};
  YamlNode root = YamlNode::Map();
  root.Put("list", list).Put("none", YamlNode::List()).Put("off", YamlNode::Text("off"));
  root.items[1].comment = "Nothing.\nAt all.";
  EXPECT_EQ(WriteYaml(root),
            "list:\n"
            "  - path: a b.txt\n"
            "    weight: 2\n"
            "  - plain\n"
            "\n"
            "# Nothing.\n"
            "# At all.\n"
            "none: []\n"
            "\"off\": \"off\"\n");
  EXPECT_EQ(FlowYaml(root),
            "{list: [{path: a b.txt, weight: 2}, plain], none: [], \"off\": \"off\"}");
}

TEST(YamlWriteTest, EveryTextReadsBackUnchanged) {
  for (const std::string text : {"",       " ",         "a",        "a: b",    "a:",
                                 "a #b",   "# a",       "null",     "~",       "true",
                                 "No",     "1",         "1e-3",     "0x10",    "M-M*-",
                                 "*-",     "-",         "- a",      "step:12", "/usr/share/x.y",
                                 "x  y",   "trailing ", "\"",       "\\",      "'",
                                 "a\tb",   "a\nb\n",    "\x01\x7f", "é€𝄞",     "\u0085",
                                 "\u2028", "[a]",       "{a}",      "a, b",    "%",
                                 "&a",     "!a",        "|",        ">",       "@",
                                 "`",      "?",         "? a",      "=",       "<<",
                                 "off",    "16x16",     "\x1b[0m"}) {
    YamlNode list = YamlNode::List();
    list.items = {YamlNode::Text(text), YamlNode::Text("next")};
    YamlNode root = YamlNode::Map();
    root.Put("key", YamlNode::Text(text)).Put(text, list);
    for (const std::string& yaml : {WriteYaml(root), FlowYaml(root)}) {
      const auto read = Read(yaml);
      ASSERT_TRUE(read.ok()) << yaml << read.status();
      EXPECT_EQ(read->items[0].text, text) << yaml;
      EXPECT_EQ(read->items[0].kind, YamlNode::Kind::kScalar) << yaml;
      EXPECT_EQ(read->keys[1].text, text) << yaml;
      ASSERT_EQ(read->items[1].items.size(), 2u) << yaml;
      EXPECT_EQ(read->items[1].items[0].text, text) << yaml;
    }
  }
}

}  // namespace
}  // namespace nibble
