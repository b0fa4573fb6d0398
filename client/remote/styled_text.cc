#include "client/remote/styled_text.h"

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/text/text.h"

namespace nibble {
namespace {

// By Ink.
constexpr std::array<const char*, 9> kSgr = {"0", "2", "1", "31", "32", "33", "34", "35", "36"};

// Of a cut, as Fit() sets it.
constexpr absl::string_view kMark = "…";

struct AsciiName {
  absl::string_view utf8;
  absl::string_view ascii;
};

constexpr AsciiName kAsciiNames[] = {
    {"→", "->"}, {"…", "..."}, {"·", "."}, {"–", "-"}, {"—", "-"}, {"×", "x"}, {"’", "'"},
};

}  // namespace

StyledLine& StyledLine::Add(absl::string_view text, Ink ink) {
  if (text.empty()) return *this;
  if (spans_.empty() || spans_.back().ink != ink) spans_.push_back({ink, ""});
  absl::StrAppend(&spans_.back().text, text);
  return *this;
}

StyledLine& StyledLine::Append(const StyledLine& line) {
  for (const Span& span : line.spans_) Add(span.text, span.ink);
  return *this;
}

size_t StyledLine::width() const {
  size_t width = 0;
  for (const Span& span : spans_) width += WidthOf(span.text);
  return width;
}

void StyledLine::Cut(size_t columns, bool utf8) {
  const bool cut = width() > columns;
  size_t room = columns;
  std::vector<Span> kept;
  for (Span& span : spans_) {
    const size_t width = WidthOf(span.text);
    // The span at the cut is marked even if it fits exactly, unless nothing follows it.
    const bool last = cut && width >= room;
    span.text =
        last ? Fit(width > room ? span.text : span.text + " ", room) : Fit(span.text, width);
    room -= last ? room : width;
    if (!span.text.empty()) kept.push_back(std::move(span));
    if (last) break;
  }
  spans_ = std::move(kept);
  if (!cut || utf8 || spans_.empty()) return;
  std::string& text = spans_.back().text;
  if (absl::EndsWith(text, kMark)) text.replace(text.size() - kMark.size(), kMark.size(), "~");
}

void StyledLine::FoldToAscii() {
  for (Span& span : spans_) span.text = AsciiText(span.text);
}

std::string StyledLine::Text(bool colours) const {
  std::string text;
  for (const Span& span : spans_) {
    if (!colours || span.ink == Ink::kPlain) {
      absl::StrAppend(&text, span.text);
    } else {
      absl::StrAppend(&text, "\x1b[", kSgr[static_cast<size_t>(span.ink)], "m", span.text,
                      "\x1b[0m");
    }
  }
  return text;
}

StyledLine FirstFitting(const std::vector<StyledLine>& lines, size_t columns) {
  for (const StyledLine& line : lines) {
    if (line.width() <= columns) return line;
  }
  return lines.back();
}

std::string AsciiText(absl::string_view utf8) {
  std::string text;
  while (!utf8.empty()) {
    if (static_cast<unsigned char>(utf8[0]) < 0x80) {
      text += utf8[0];
      utf8.remove_prefix(1);
      continue;
    }
    bool named = false;
    for (const AsciiName& name : kAsciiNames) {
      if (!absl::ConsumePrefix(&utf8, name.utf8)) continue;
      absl::StrAppend(&text, name.ascii);
      named = true;
      break;
    }
    if (named) continue;
    text += '?';
    utf8.remove_prefix(1);
    // Continuation bytes of the same character.
    while (!utf8.empty() && (static_cast<unsigned char>(utf8[0]) & 0xc0) == 0x80) {
      utf8.remove_prefix(1);
    }
  }
  return text;
}

size_t WidthWithoutColours(absl::string_view text) {
  size_t width = 0;
  while (!text.empty()) {
    const size_t escape = text.find("\x1b[");
    width += WidthOf(text.substr(0, escape));
    if (escape == absl::string_view::npos) break;
    text.remove_prefix(escape);
    const size_t end = text.find('m');
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
  }
  return width;
}

}  // namespace nibble
