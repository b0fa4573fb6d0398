#include "tests/service/contract.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

// By number.
constexpr const char* kNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// Names of codes among the words of a text.
std::set<std::string> CodesIn(absl::string_view text) {
  std::set<std::string> codes;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ,.:()"))) {
    for (const char* name : kNames) {
      if (word == name) codes.insert(name);
    }
  }
  return codes;
}

}  // namespace

std::string CodeName(grpc::StatusCode code) {
  const auto number = static_cast<size_t>(code);
  return number < std::size(kNames) ? kNames[number] : absl::StrCat("code ", number);
}

std::map<std::string, std::set<std::string>> PromisedCodes(const std::string& proto_text) {
  std::map<std::string, std::set<std::string>> promised;
  std::set<std::string> of_all = {"OK"}, of_next;
  bool in_head = true;
  for (absl::string_view line : absl::StrSplit(proto_text, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, "//")) {
      (in_head ? of_all : of_next).merge(CodesIn(line));
    } else if (absl::ConsumePrefix(&line, "rpc ")) {
      std::set<std::string>& codes = promised[std::string(line.substr(0, line.find('(')))];
      codes = of_all;
      codes.merge(of_next);
      of_next.clear();
    } else {
      in_head = false;
    }
  }
  return promised;
}

}  // namespace nibble
