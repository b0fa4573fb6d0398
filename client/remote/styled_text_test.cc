#include "client/remote/styled_text.h"

#include <algorithm>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

StyledLine Coloured() {
  StyledLine line("loss ");
  line.Add("4.25", Ink::kGreen).Add("  step 7");
  return line;
}

TEST(StyledLineTest, OnlyATerminalWithColoursGetsEscapeSequences) {
  EXPECT_EQ(Coloured().Text(false), "loss 4.25  step 7");
  EXPECT_EQ(Coloured().Text(true), "loss \x1b[32m4.25\x1b[0m  step 7");
  EXPECT_EQ(WidthWithoutColours(Coloured().Text(true)), Coloured().width());
}

TEST(StyledLineTest, ACutAtAnyColumnHasThatWidthAndAMark) {
  const std::string whole = Coloured().Text(false);
  for (size_t columns = 0; columns <= whole.size() + 1; ++columns) {
    StyledLine line = Coloured();
    line.Cut(columns);
    const size_t shown = std::min(columns, whole.size());
    EXPECT_EQ(line.width(), shown);
    EXPECT_EQ(line.Text(false), columns >= whole.size() ? whole
                                : columns == 0          ? ""
                                                        : whole.substr(0, columns - 1) + "…");
  }
}

TEST(StyledLineTest, WithoutUtf8ACutIsMarkedByATilde) {
  StyledLine line = Coloured();
  line.Cut(8, /*utf8=*/false);
  EXPECT_EQ(line.Text(false), "loss 4.~");
}

TEST(StyledLineTest, ControlCharactersCannotMoveTheCursor) {
  StyledLine line("a\x1b[2J\nb", Ink::kRed);
  line.Cut(20);
  EXPECT_EQ(line.Text(false), "a?[2J?b");
}

TEST(AsciiTextTest, KnownSignsAreNamedAndOthersBecomeAQuestionMark) {
  EXPECT_EQ(AsciiText("queued → running … 2×"), "queued -> running ... 2x");
  EXPECT_EQ(AsciiText("Zoë 火"), "Zo? ?");
  StyledLine line("a → b");
  line.FoldToAscii();
  EXPECT_EQ(line.Text(false), "a -> b");
}

}  // namespace
}  // namespace nibble
