#include "worker/trainer/data/text_corpus.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;

class TextCorpusTest : public testing::Test {
 protected:
  std::string Add(const std::string& name, std::string_view text = "text") {
    WriteFile(directory_.Path(name), text);
    return directory_.Path(name);
  }
  TempDirectory directory_;
};

TEST_F(TextCorpusTest, FilesComeInTheOrderOfInputsAndWithinThemOfPathBytes) {
  const std::string b = Add("in/b.txt"), upper = Add("in/Z.txt"), a = Add("in/a/z.txt");
  const std::string last = Add("other/a.txt"), first = Add("first");
  const auto files = ListTextFiles({first, directory_.Path("in"), directory_.Path("other")}, {});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(*files, ElementsAre(first, upper, a, b, last));
}

TEST_F(TextCorpusTest, ExtensionsChooseAmongTheFilesOfDirectoriesOnly) {
  const std::string named = Add("named.gz"), a = Add("in/a.md"), b = Add("in/b.txt");
  Add("in/c.md.gz");
  EXPECT_THAT(*ListTextFiles({named, directory_.Path("in")}, {".md", ".txt"}),
              ElementsAre(named, a, b));
}

TEST_F(TextCorpusTest, LinksToFilesCountAndLinksToDirectoriesDoNot) {
  Add("elsewhere/x");
  const std::string a = Add("in/a");
  ASSERT_EQ(symlink(directory_.Path("elsewhere").c_str(), directory_.Path("in/loop").c_str()), 0);
  ASSERT_EQ(symlink(directory_.Path("elsewhere/x").c_str(), directory_.Path("in/b").c_str()), 0);
  EXPECT_THAT(*ListTextFiles({directory_.Path("in")}, {}), ElementsAre(a, directory_.Path("in/b")));
}

TEST_F(TextCorpusTest, InputsThatCannotBeACorpusAreRefusedByPath) {
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

TEST_F(TextCorpusTest, AFileThatOccursTwiceIsRefusedHoweverItIsSpelled) {
  const std::string a = Add("in/a");
  ASSERT_EQ(symlink(a.c_str(), directory_.Path("link").c_str()), 0);
  for (const std::string& again :
       {a, directory_.Path("in/../in/a"), directory_.Path("in"), directory_.Path("link")}) {
    const absl::Status status = ListTextFiles({a, again}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << again;
    EXPECT_THAT(std::string(status.message()), HasSubstr("twice"));
  }
}

TEST_F(TextCorpusTest, DocumentsAreNumberedOverAllFilesAndKnowTheirPlace) {
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

TEST_F(TextCorpusTest, FilesThatAreNoTextAreRefusedByPathAndOffset) {
  const std::string binary = Add("binary", std::string_view("ab\0c", 4));
  const absl::Status status =
      ForEachDocument({binary}, {}, [](const CorpusDocument&) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(binary), HasSubstr("byte 2")));
}

}  // namespace
}  // namespace nibble
