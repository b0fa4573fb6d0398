#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/corpus/text_corpus.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Split(std::string_view text, const DocumentSplit& split) {
  std::vector<std::string> documents;
  const absl::Status status = SplitDocuments(text, split, [&](std::string_view document) {
    documents.emplace_back(document);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return documents;
}

DocumentSplit Paragraphs(int64_t min_bytes) {
  return {.rule = SplitRule::kParagraphs, .min_bytes = min_bytes};
}
DocumentSplit Line(std::string delimiter) {
  return {.rule = SplitRule::kLine, .delimiter = std::move(delimiter)};
}

TEST(DocumentSplit, AFileIsOneDocumentAndAnEmptyFileNone) {
  EXPECT_THAT(Split("a\n\nb\n", {}), ElementsAre("a\n\nb\n"));
  for (const DocumentSplit& split : {DocumentSplit{}, Paragraphs(1), Line("--")}) {
    EXPECT_THAT(Split("", split), IsEmpty());
  }
}

TEST(DocumentSplit, ParagraphsAreCutAfterTheirBlankLines) {
  EXPECT_THAT(Split("a\n\nb\nc\n \t\r\n\nd", Paragraphs(1)),
              ElementsAre("a\n\n", "b\nc\n \t\r\n\n", "d"));
}

TEST(DocumentSplit, ParagraphsShorterThanTheBoundJoinTheirNeighbours) {
  EXPECT_THAT(Split("aa\n\nb\n\nccccc\n\nd\n", Paragraphs(5)),
              ElementsAre("aa\n\nb\n\n", "ccccc\n\nd\n"));
  EXPECT_THAT(Split("a\n\nb\n", Paragraphs(100)), ElementsAre("a\n\nb\n"));
}

TEST(DocumentSplit, ConcatenatedParagraphsAreTheFileAndNoneIsTooShort) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string text(random() % 400, ' ');
    for (char& c : text) c = "ab \n\n\n\t"[random() % 7];
    const int64_t min_bytes = 1 + random() % 60;
    std::string together;
    for (const std::string& document : Split(text, Paragraphs(min_bytes))) {
      if (static_cast<int64_t>(text.size()) >= min_bytes) {
        EXPECT_GE(static_cast<int64_t>(document.size()), min_bytes);
      }
      together += document;
    }
    ASSERT_EQ(together, text);
  }
}

TEST(DocumentSplit, DelimiterLinesSeparateDocumentsAndBelongToNone) {
  EXPECT_THAT(Split("--\na\nb\n--\n--\r\nc--\n --\n--", Line("--")),
              ElementsAre("a\nb\n", "c--\n --\n"));
  EXPECT_THAT(Split("a\n\f\nb\n", Line("\f")), ElementsAre("a\n", "b\n"));
}

TEST(DocumentSplit, TheSinksErrorStopsTheSplit) {
  for (const DocumentSplit& split : {DocumentSplit{}, Paragraphs(1), Line("-")}) {
    int calls = 0;
    const absl::Status status = SplitDocuments("a\n\n-\nb\n\n-\nc", split, [&](std::string_view) {
      ++calls;
      return absl::AbortedError("enough");
    });
    EXPECT_EQ(status, absl::AbortedError("enough"));
    EXPECT_EQ(calls, 1);
  }
}

TEST(DocumentSplit, RulesOutOfBoundsAreRefusedByName) {
  EXPECT_THAT(std::string(Validate(Paragraphs(0)).message()), HasSubstr("min_bytes is 0"));
  for (const char* delimiter : {"", "a\nb", "a\r"}) {
    EXPECT_THAT(std::string(Validate(Line(delimiter)).message()), HasSubstr("delimiter"));
  }
}

using ::testing::AllOf;
using ::testing::FieldsAre;

class TextCorpusTest : public testing::Test {
 protected:
  std::string Add(const std::string& name, std::string_view text = "text") {
    WriteFile(directory_.Path(name), text);
    return directory_.Path(name);
  }
  TempDirectory directory_;
};

TEST_F(TextCorpusTest, FilesAreInTheOrderOfInputsAndWithinADirectoryInByteOrder) {
  const std::string b = Add("in/b.txt"), upper = Add("in/Z.txt"), a = Add("in/a/z.txt");
  const std::string last = Add("other/a.txt"), first = Add("first");
  const auto files = ListTextFiles({first, directory_.Path("in"), directory_.Path("other")}, {});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(*files, ElementsAre(first, upper, a, b, last));
}

TEST_F(TextCorpusTest, ExtensionsSelectOnlyFilesOfDirectories) {
  const std::string named = Add("named.gz"), a = Add("in/a.md"), b = Add("in/b.txt");
  Add("in/c.md.gz");
  EXPECT_THAT(*ListTextFiles({named, directory_.Path("in")}, {".md", ".txt"}),
              ElementsAre(named, a, b));
}

TEST_F(TextCorpusTest, LinksToFilesAreReadAndLinksToDirectoriesAreNot) {
  Add("elsewhere/x");
  const std::string a = Add("in/a");
  ASSERT_EQ(symlink(directory_.Path("elsewhere").c_str(), directory_.Path("in/loop").c_str()), 0);
  ASSERT_EQ(symlink(directory_.Path("elsewhere/x").c_str(), directory_.Path("in/b").c_str()), 0);
  EXPECT_THAT(*ListTextFiles({directory_.Path("in")}, {}), ElementsAre(a, directory_.Path("in/b")));
}

TEST_F(TextCorpusTest, InvalidInputsAreRefusedByPath) {
  const std::string a = Add("in/a");
  ASSERT_EQ(mkdir(directory_.Path("empty").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(directory_.Path("pipe").c_str(), 0600), 0);
  const auto error = [](std::vector<std::string> inputs, std::vector<std::string> extensions = {}) {
    return ListTextFiles(inputs, extensions).status();
  };
  EXPECT_EQ(error({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error({directory_.Path("empty")}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error({directory_.Path("in")}, {".md"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error({directory_.Path("pipe")}).code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status absent = error({a, directory_.Path("absent")});
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr(directory_.Path("absent")));
  ASSERT_EQ(symlink("nowhere", directory_.Path("in/dangling").c_str()), 0);
  EXPECT_EQ(error({directory_.Path("in")}).code(), absl::StatusCode::kNotFound);
}

TEST_F(TextCorpusTest, AFileGivenTwiceIsRefusedUnderAnySpelling) {
  const std::string a = Add("in/a");
  ASSERT_EQ(symlink(a.c_str(), directory_.Path("link").c_str()), 0);
  for (const std::string& again :
       {a, directory_.Path("in/../in/a"), directory_.Path("in"), directory_.Path("link")}) {
    const absl::Status status = ListTextFiles({a, again}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << again;
    EXPECT_THAT(std::string(status.message()), HasSubstr("twice"));
  }
}

TEST_F(TextCorpusTest, DocumentsAreNumberedAcrossFilesAndHaveTheirFileAndOffset) {
  const std::vector<std::string> files = {Add("a", "1\n--\n2\n"), Add("b", ""), Add("c", "3")};
  std::vector<std::tuple<int64_t, size_t, int64_t, std::string>> got;
  const absl::Status status = ForEachDocument(
      files, {.rule = SplitRule::kLine, .delimiter = "--"}, [&](const CorpusDocument& document) {
        got.emplace_back(document.number, document.file, document.offset, document.text);
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(got, ElementsAre(FieldsAre(0, 0, 0, "1\n"), FieldsAre(1, 0, 5, "2\n"),
                               FieldsAre(2, 2, 0, "3")));
  EXPECT_THAT(*FileSizes(files), ElementsAre(7, 0, 1));
  EXPECT_EQ(FileSizes({directory_.Path("absent")}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TextCorpusTest, DocumentsWithAZeroByteAreSkippedAndCountedKeptOrRefused) {
  const std::vector<std::string> files = {
      Add("a.txt", std::string_view("one\n--\nt\0wo\n--\nthree\n", 21)),
      Add("b.jsonl", "{\"text\": \"four\"}\n{\"text\": \"fi\\u0000ve\"}\n")};
  SkippedDocuments skipped;
  absl::Status status;
  const auto documents = [&](ControlRule rule) {
    DocumentSplit split = Line("--");
    split.control = rule;
    skipped = {};
    std::vector<std::string> got;
    status = ForEachDocument(
        files, split,
        [&](const CorpusDocument& document) {
          EXPECT_EQ(document.number, static_cast<int64_t>(got.size()));
          got.emplace_back(document.text);
          return absl::OkStatus();
        },
        &skipped);
    return got;
  };
  EXPECT_THAT(documents(ControlRule::kSkip), ElementsAre("one\n", "three\n", "four"));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(skipped.count, 2);
  EXPECT_EQ(SkippedText(skipped),
            "2 documents with a zero byte were skipped, the first at " + files[0] + ": byte 8");
  EXPECT_THAT(
      documents(ControlRule::kKeep),
      ElementsAre("one\n", std::string("t\0wo\n", 5), "three\n", "four", std::string("fi\0ve", 5)));
  EXPECT_EQ(skipped.count, 0);
  EXPECT_THAT(documents(ControlRule::kRefuse), ElementsAre("one\n"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(files[0] + ": byte 8 is zero"), HasSubstr("skip")));
}

TEST_F(TextCorpusTest, ParquetIsRefusedWithTheConversionByNameAndByContent) {
  const auto refused = [](const absl::Status& status, const std::string& path) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(path), HasSubstr("pyarrow.parquet"), HasSubstr(".jsonl")));
  };
  const std::string named = Add("rows.parquet");
  refused(ListTextFiles({named}, {}).status(), named);
  const std::string unnamed = Add("rows", std::string_view("PAR1\0\0\0\0PAR1", 12));
  refused(ForEachDocument({unnamed}, {}, [](const CorpusDocument&) { return absl::OkStatus(); }),
          unnamed);
  const std::string text = Add("text", "PAR1 is a golf term");
  EXPECT_TRUE(
      ForEachDocument({text}, {}, [](const CorpusDocument&) { return absl::OkStatus(); }).ok());
}

// Compressed as by the programs gzip and zstd.
std::string Gzip(std::string_view text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  EXPECT_EQ(deflateEnd(&stream), Z_OK);
  return out;
}
std::string Zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}
// Longer than the buffers of either library.
std::string LongText() {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += std::to_string(i * 7919) + (i % 9 == 0 ? "\n" : " ");
  return text;
}

class ExpandedTest : public TextCorpusTest {
 protected:
  std::vector<std::string> Documents(const std::string& file, const DocumentSplit& split = {}) {
    std::vector<std::string> documents;
    status_ = ForEachDocument({file}, split, [&](const CorpusDocument& document) {
      documents.emplace_back(document.text);
      return absl::OkStatus();
    });
    return documents;
  }
  std::string Message() const { return std::string(status_.message()); }
  absl::Status status_;
};

TEST_F(ExpandedTest, CompressedFilesAreReadAsTheirText) {
  const std::string text = LongText();
  for (const std::string& file :
       {Add("a.txt.gz", Gzip(text)), Add("a.txt.zst", Zstd(text)),
        Add("two.gz", Gzip(text.substr(0, 1000)) + Gzip(text.substr(1000))),
        Add("two.zst", Zstd(text.substr(0, 1000)) + Zstd(text.substr(1000))),
        Add("by content", Gzip(text))}) {
    EXPECT_THAT(Documents(file), ElementsAre(text)) << file;
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_THAT(*FileSizes({file}), ElementsAre(static_cast<int64_t>(text.size())));
  }
  EXPECT_THAT(Documents(Add("none.gz", Gzip(""))), ElementsAre());
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_F(ExpandedTest, DamagedCompressedDataIsNamedByFileAndByte) {
  const std::string text = LongText();
  const std::string gzip = Gzip(text), zstd = Zstd(text);
  std::string wrong_gzip = gzip, wrong_zstd = zstd;
  for (size_t i = 0; i < 8; ++i) {
    wrong_gzip[gzip.size() / 2 + i] ^= 0x5a;
    wrong_zstd[zstd.size() / 2 + i] ^= 0x5a;
  }
  for (const std::string& file :
       {Add("short.gz", gzip.substr(0, gzip.size() - 5)),
        Add("short.zst", zstd.substr(0, zstd.size() - 5)), Add("wrong.gz", wrong_gzip),
        Add("wrong.zst", wrong_zstd), Add("more.gz", gzip + "text"), Add("more.zst", zstd + "text"),
        Add("head.gz", gzip.substr(0, 3))}) {
    EXPECT_EQ(Documents(file).size(), 0u);
    EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss) << file;
    EXPECT_THAT(Message(), AllOf(HasSubstr(file), HasSubstr("data is damaged at byte ")));
    EXPECT_EQ(FileSizes({file}).status(), status_);
  }
  Documents(Add("plain.gz", "text"));
  EXPECT_THAT(Message(),
              HasSubstr("plain.gz: the name ends with .gz, but the file does not begin as gzip"));
}

TEST_F(ExpandedTest, EveryLineOfAJsonLinesFileIsADocument) {
  const std::string lines =
      "{\"text\": \"one\\n\\ntwo \\u6f22\", \"id\": 1}\n\n{\"text\": \"\"}\r\n"
      "{\"id\": 2, \"text\": \"three\"}";
  for (const std::string& file :
       {Add("a.jsonl", lines), Add("a.ndjson", lines), Add("a.jsonl.gz", Gzip(lines)),
        Add("a.JSONL.zst", Zstd(lines))}) {
    EXPECT_THAT(Documents(file, {.rule = SplitRule::kParagraphs, .min_bytes = 1}),
                ElementsAre("one\n\ntwo \u6f22", "three"))
        << file;
    EXPECT_TRUE(status_.ok()) << status_;
  }
  EXPECT_THAT(Documents(Add("b.jsonl", "{\"body\": \"x\"}"), {.text_field = "body"}),
              ElementsAre("x"));
}

TEST_F(ExpandedTest, AJsonLineWithoutADocumentIsRefusedByItsLine) {
  const auto message = [&](std::string_view line) {
    Documents(Add("a.jsonl", "{\"text\": \"x\"}\n" + std::string(line)));
    EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
    return Message();
  };
  EXPECT_THAT(message("{\"text\": "), HasSubstr("a.jsonl, line 2: not JSON"));
  EXPECT_THAT(message("[1]"), HasSubstr("line 2: not a JSON object"));
  EXPECT_THAT(message("{\"body\": 1}"),
              HasSubstr("line 2: it has no field 'text'; text_field names the one to read"));
  EXPECT_THAT(message("{\"text\": 7}"), HasSubstr("its field 'text' is not a string"));
  EXPECT_THAT(message("{\"text\": \"a\", \"b\": " + std::string(1 << 20, '[') +
                      std::string(1 << 20, ']') + "}"),
              HasSubstr("line 2: nested deeper than 64"));
}

TEST_F(TextCorpusTest, ExtensionsOfOtherDataAreRefused) {
  for (const char* name : {"a.arrow", "a.json", "a.csv.gz", "a.bin", "a.PDF", "a.tar.gz"}) {
    const absl::Status status = ListTextFiles({Add(name)}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(name), HasSubstr("its extension is not that of a text file")));
  }
  Add("tree/package.json");
  EXPECT_TRUE(ListTextFiles({directory_.Path("tree")}, {}).ok());
  Add("tree/rows.parquet");
  EXPECT_FALSE(ListTextFiles({directory_.Path("tree")}, {}).ok());
  EXPECT_TRUE(ListTextFiles({directory_.Path("tree")}, {".json"}).ok());
}

}  // namespace
}  // namespace nibble
