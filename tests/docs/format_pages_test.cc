// The worked examples of docs/formats against the code: the table of a page is what the page's own
// script prints, and what the code computes.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "kernels/formats/hadamard.h"
#include "worker/trainer/data/batch_builder.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {
namespace {

struct Page {
  std::string rows;    // of the last table, each with its newline
  std::string script;  // in Python
};

Page ReadPage(const std::string& name) {
  std::ifstream file("docs/formats/" + name);
  EXPECT_TRUE(file) << name;
  Page page;
  bool in_script = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "```python" || line == "```") {
      in_script = line != "```";
    } else if (in_script) {
      absl::StrAppend(&page.script, line, "\n");
    } else if (absl::StartsWith(line, "|---")) {
      page.rows.clear();
    } else if (absl::StartsWith(line, "| ")) {
      absl::StrAppend(&page.rows, line, "\n");
    }
  }
  EXPECT_FALSE(page.script.empty()) << name;
  return page;
}

std::string OutputOf(const std::string& script) {
  const TempDirectory directory;
  const std::string path = directory.Path("script.py");
  WriteFile(path, script);
  std::FILE* const run = popen(absl::StrCat("python3 ", path).c_str(), "r");
  if (run == nullptr) return "";
  std::string output;
  for (int c; (c = std::getc(run)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(run), 0);
  return output;
}

TEST(FormatPages, TheOrderOfSamplesIsThatOfThePageAndOfItsScript) {
  const Page page = ReadPage("sample-order.md");
  EXPECT_EQ(OutputOf(page.script), page.rows);

  // Token i of a data set is i, so that a window's tokens are their positions.
  const TempDirectory directory;
  std::vector<std::shared_ptr<const TokenSource>> sources;
  for (const int tokens : {43, 21}) {
    const std::string path = directory.Path(absl::StrCat(tokens));
    std::vector<int32_t> document(static_cast<size_t>(tokens));
    std::iota(document.begin(), document.end(), 0);
    WriteShard(path, {document}, {.tokenizer = "bytes", .vocabulary = 257, .chunk_bytes = 64});
    absl::StatusOr<std::unique_ptr<TokenSource>> source = OpenTokens(path);
    ASSERT_TRUE(source.ok()) << source.status();
    sources.push_back(*std::move(source));
  }
  const absl::StatusOr<BatchBuilder> builder = BatchBuilder::Create(
      sources, {{.parts = 2, .weights = {2, 1}}, {.parts = 1, .weights = {1, 1}}},
      /*steps=*/7, {.seed = 7, .global_sequences = 4, .length = 4});
  ASSERT_TRUE(builder.ok()) << builder.status();
  std::string rows;
  for (int64_t step = 0; step < 7; ++step) {
    const absl::StatusOr<Batch> batch = builder->Build({.step = step});
    ASSERT_TRUE(batch.ok()) << batch.status();
    for (int64_t row = 0; row < 4; ++row) {
      const int64_t index = 4 * step + row;
      const Sample sample = builder->sampler().SampleAt(index);
      absl::StrAppendFormat(&rows, "| %d | %d | %d | %d | %d | %d | %d to %d |\n", index, step,
                            builder->sampler().blend().PhaseAt(static_cast<uint64_t>(index)),
                            sample.dataset, sample.epoch, sample.index, batch->tokens[4 * row],
                            batch->targets[4 * row + 3]);
    }
  }
  EXPECT_EQ(rows, page.rows);
}

TEST(FormatPages, TheHadamardTransformIsThatOfThePageAndOfItsScript) {
  const Page page = ReadPage("hadamard.md");
  EXPECT_EQ(OutputOf(page.script), page.rows);
  const std::vector<float> x = {134217728, -2, -512, -134217728, -9, 256, 6, -8};
  std::vector<float> y = x;
  HadamardBf16<float>(y.data(), static_cast<int>(y.size()), 1, kDefaultSigns);
  std::string rows;
  for (size_t i = 0; i < x.size(); ++i) {
    absl::StrAppendFormat(&rows, "| %d | %.1f | %.1f |\n", i, x[i], y[i]);
  }
  EXPECT_EQ(rows, page.rows);
}

}  // namespace
}  // namespace nibble
