#include "worker/trainer/data/shard_writer.h"
#include "common/files/files.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/shard.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ShardWriterTest : public testing::Test {
 protected:
  std::unique_ptr<TokenShardWriter> Create(const ShardOptions& options = TestOptions()) {
    auto writer = TokenShardWriter::Create(Path(), options);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }
  std::string Path() const { return directory_.Path("shard"); }

  TempDirectory directory_;
};

TEST_F(ShardWriterTest, TheShardAppearsOnlyWithTheCommit) {
  auto writer = Create();
  ASSERT_TRUE(writer->Append({1, 2, 3}).ok());
  ASSERT_TRUE(writer->EndDocument().ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_NE(access(Path().c_str(), F_OK), 0);
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_THAT(*ListDirectory(directory_.path()), UnorderedElementsAre("shard"));
  const auto shard = TokenShard::Open(Path());
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(ReadAll(**shard), (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(ShardWriterTest, AWriterDroppedBeforeTheCommitLeavesNothing) {
  for (const bool finish : {false, true}) {
    auto writer = Create();
    ASSERT_TRUE(writer->Append(std::vector<int32_t>(1'000'000, 7)).ok());
    ASSERT_TRUE(writer->EndDocument().ok());
    if (finish) {
      ASSERT_TRUE(writer->Finish().ok());
    }
    writer.reset();
    EXPECT_THAT(*ListDirectory(directory_.path()), IsEmpty());
  }
}

TEST_F(ShardWriterTest, AnEarlierShardStaysUntilTheCommitAndIsReplacedByIt) {
  WriteShard(Path(), {{1}});
  const std::string before = Contents(Path());
  auto writer = Create();
  ASSERT_TRUE(writer->Append(std::vector<int32_t>(500'000, 2)).ok());
  ASSERT_TRUE(writer->EndDocument().ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(Contents(Path()), before);
  const auto open = TokenShard::Open(Path());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ((*TokenShard::Open(Path()))->tokens(), 500'000);
  EXPECT_EQ(ReadAll(**open), std::vector<int32_t>{1});  // an open reader keeps the old shard
}

TEST_F(ShardWriterTest, AProcessThatDiesWhileWritingLeavesTheEarlierShard) {
  WriteShard(Path(), {{1}});
  const std::string before = Contents(Path());
  const pid_t child = fork();
  if (child == 0) {
    auto writer = TokenShardWriter::Create(Path(), TestOptions());
    const bool good = writer.ok() && (*writer)->Append(std::vector<int32_t>(500'000, 2)).ok() &&
                      (*writer)->EndDocument().ok() && (*writer)->Finish().ok();
    _exit(good ? 42 : 1);  // without running destructors
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  EXPECT_EQ(Contents(Path()), before);
  EXPECT_EQ(ListDirectory(directory_.path())->size(), 2u);  // the shard and a temporary file
}

TEST_F(ShardWriterTest, AFullDiskIsAnErrorThatLeavesTheEarlierShard) {
  WriteShard(Path(), {{1}});
  const std::string before = Contents(Path());
  // A limit on file sizes replaces the full disk: write(2) fails in the same way.
  struct rlimit old_limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {.rlim_cur = 1'000'000, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  auto writer = Create();
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = writer->Append(std::vector<int32_t>(10'000, 3));
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(status.ok());
  // The error stays even if there is space again: the shard is incomplete.
  EXPECT_EQ(writer->EndDocument(), status);
  EXPECT_EQ(writer->Commit(), status);
  writer.reset();
  EXPECT_EQ(Contents(Path()), before);
  EXPECT_THAT(*ListDirectory(directory_.path()), UnorderedElementsAre("shard"));
}

TEST_F(ShardWriterTest, BytesDoNotDependOnTheSizesOfAppends) {
  const Documents documents = RandomDocuments(3, 50, 100, 1000);
  WriteShard(directory_.Path("whole"), documents);
  auto writer = Create();
  for (size_t d = 0; d < documents.size(); ++d) {
    absl::Span<const int32_t> rest(documents[d]);
    for (size_t piece = d % 7; !rest.empty(); piece = (piece * 5 + 1) % 11) {
      ASSERT_TRUE(writer->Append(rest.subspan(0, piece)).ok());
      rest.remove_prefix(std::min(piece, rest.size()));
    }
    ASSERT_TRUE(writer->EndDocument().ok());
  }
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(Contents(Path()), Contents(directory_.Path("whole")));
}

TEST_F(ShardWriterTest, TheEndOfDocumentTokenIsAppendedAlsoToEmptyDocuments) {
  ShardOptions options = TestOptions();
  options.end_of_document = 999;
  WriteShard(Path(), {{5}, {}, {6, 7}}, options);
  const auto shard = TokenShard::Open(Path());
  ASSERT_TRUE(shard.ok());
  EXPECT_EQ((*shard)->end_of_document(), 999);
  EXPECT_EQ(ReadAll(**shard), (std::vector<int32_t>{5, 999, 999, 6, 7, 999}));
  EXPECT_EQ((*shard)->DocumentBegin(2), 3);
}

TEST_F(ShardWriterTest, TheNarrowestWidthIsChosen) {
  const std::pair<int64_t, int> kCases[] = {{1, 2}, {65536, 2}, {65537, 4}, {int64_t{1} << 31, 4}};
  for (const auto& [vocabulary, width] : kCases) {
    EXPECT_EQ(MakeShard({{0}}, TestOptions(vocabulary))->token_width(), width) << vocabulary;
  }
}

TEST_F(ShardWriterTest, OptionsOutOfBoundsAreRefusedByNameAndCreateNothing) {
  const auto with = [](auto change) {
    ShardOptions options = TestOptions();
    change(options);
    return options;
  };
  const struct {
    const char* field;
    ShardOptions options;
  } kCases[] = {
      {"vocabulary", with([](ShardOptions& o) { o.vocabulary = 0; })},
      {"vocabulary", with([](ShardOptions& o) { o.vocabulary = -5; })},
      {"vocabulary", with([](ShardOptions& o) { o.vocabulary = (int64_t{1} << 31) + 1; })},
      {"vocabulary", with([](ShardOptions& o) { o.vocabulary = (int64_t{1} << 32) + 5; })},
      {"vocabulary", with([](ShardOptions& o) { o = TestOptions(65537), o.token_width = 2; })},
      {"token_width", with([](ShardOptions& o) { o.token_width = 3; })},
      {"token_width", with([](ShardOptions& o) { o.token_width = -2; })},
      {"chunk_bytes", with([](ShardOptions& o) { o.chunk_bytes = 100; })},
      {"chunk_bytes", with([](ShardOptions& o) { o.chunk_bytes = (int64_t{1} << 32) + 64; })},
      {"end_of_document", with([](ShardOptions& o) { o.end_of_document = 1000; })},
      {"end_of_document", with([](ShardOptions& o) { o.end_of_document = -1; })},
      {"tokenizer", with([](ShardOptions& o) { o.tokenizer = ""; })},
      {"tokenizer", with([](ShardOptions& o) { o.tokenizer = std::string(33, 'x'); })},
      {"tokenizer", with([](ShardOptions& o) { o.tokenizer = "a\tb"; })},
  };
  for (const auto& one : kCases) {
    const absl::Status status = TokenShardWriter::Create(Path(), one.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.field;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(one.field), HasSubstr(Path())));
  }
  EXPECT_THAT(*ListDirectory(directory_.path()), IsEmpty());
}

TEST_F(ShardWriterTest, TokensOutsideTheVocabularyAreRefusedAndNothingIsCommittedAfterwards) {
  for (const int32_t token : {-1, 1000, INT32_MIN}) {
    auto writer = Create();
    ASSERT_TRUE(writer->Append({1}).ok());
    const absl::Status status = writer->Append({2, token});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::to_string(token)), HasSubstr("position 2")));
    EXPECT_EQ(writer->Append({3}), status);
    EXPECT_EQ(writer->Commit(), status);
  }
  EXPECT_THAT(*ListDirectory(directory_.path()), IsEmpty());
}

TEST_F(ShardWriterTest, EmptyAndUnendedDocumentsAreRefused) {
  auto writer = Create();
  EXPECT_EQ(writer->EndDocument().code(), absl::StatusCode::kInvalidArgument);
  writer = Create();
  ASSERT_TRUE(writer->Append({1}).ok());
  EXPECT_EQ(writer->Commit().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ShardWriterTest, AFinishedShardAcceptsNoTokens) {
  auto writer = Create();
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(writer->Append({1}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->EndDocument().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(writer->Commit().ok());
}

TEST_F(ShardWriterTest, LinksDirectoriesAndMissingDirectoriesAreNotReplaced) {
  WriteFile(directory_.Path("target"), "precious");
  ASSERT_EQ(symlink(directory_.Path("target").c_str(), Path().c_str()), 0);
  EXPECT_EQ(TokenShardWriter::Create(Path(), TestOptions()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TokenShardWriter::Create(directory_.path(), TestOptions()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TokenShardWriter::Create(directory_.Path("a/b"), TestOptions()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Contents(directory_.Path("target")), "precious");
}

}  // namespace
}  // namespace nibble
