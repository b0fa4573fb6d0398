#include "client/shell/output.h"

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/errno_error.h"
#include "common/yaml_scalar.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

int stdout_errno = EIO;  // of the last write that failed

// A literal block has no escapes, and its first character determines the indentation.
bool FitsBlock(const std::string& text) {
  return text.find('\n') != std::string::npos && text[0] != ' ' && text[0] != '\n' &&
         text[0] != '\t' && YamlPrintable(text);
}

std::string Scalar(const Json& value, const std::string& indent) {
  if (value.is_number_float()) return YamlNumber(value.dump());
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (YamlReadsAsItself(text)) return text;
  if (!FitsBlock(text)) return YamlQuoted(text);
  const bool ends = text.back() == '\n';
  const bool ends_twice = absl::EndsWith(text, "\n\n");
  std::string out = ends_twice ? "|+" : ends ? "|" : "|-";
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text).substr(0, text.size() - (ends ? 1 : 0)), '\n')) {
    absl::StrAppend(&out, "\n", line.empty() ? "" : indent, line);
  }
  return out;
}

// Appends a value after a key or a dash: scalars on the same line, containers below.
void Append(const Json& value, const std::string& indent, bool in_list, std::string& out);

void AppendParts(const Json& value, const std::string& indent, bool after_dash, std::string& out) {
  bool placed = after_dash;  // the indentation of the first part is written
  for (const auto& [key, part] : value.items()) {
    if (!placed) out += indent;
    placed = false;
    if (value.is_array()) {
      out += "-";
    } else {
      absl::StrAppend(&out, YamlReadsAsItself(key) ? key : YamlQuoted(key), ":");
    }
    Append(part, absl::StrCat(indent, "  "), value.is_array(), out);
  }
}

void Append(const Json& value, const std::string& indent, bool in_list, std::string& out) {
  if (!value.is_structured()) {
    absl::StrAppend(&out, " ", Scalar(value, indent), "\n");
  } else if (value.empty()) {
    absl::StrAppend(&out, " ", value.is_array() ? "[]" : "{}", "\n");
  } else if (in_list) {
    out += ' ';
    AppendParts(value, indent, true, out);
  } else {
    out += '\n';
    AppendParts(value, indent, false, out);
  }
}

}  // namespace

void Tell(std::string_view command, std::string_view line) {
  absl::FPrintF(stderr, "nibble %s: %s\n", command, line);
}

absl::Status WriteOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  stdout_errno = errno;
  return ErrnoError(errno, "cannot write to stdout");
}

int ExitCodeOfOutput(int exit_code) {
  if (std::fflush(stdout) != 0) stdout_errno = errno;
  if (exit_code != kExitDone || std::ferror(stdout) == 0) return exit_code;
  const absl::Status status = ErrnoError(stdout_errno, "cannot write to stdout");
  absl::FPrintF(stderr, "nibble: %s\n", status.message());
  return kExitError;
}

int Finish(std::string_view command, const std::string& print, const absl::StatusOr<Reply>& reply) {
  if (!reply.ok()) {
    Tell(command, std::string(reply.status().message()));
    return ExitCodeOf(reply.status());
  }
  std::string output = ForPrograms(print) ? reply->json : reply->text;
  if (print == "yaml" && !output.empty()) output = YamlOf(Json::parse(output, nullptr, false));
  if (const absl::Status status = WriteOut(output); !status.ok()) {
    Tell(command, std::string(status.message()));
    return kExitError;
  }
  for (const std::string& note : reply->notes) Tell(command, note);
  return reply->exit_code;
}

std::string JsonText(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string JsonLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string YamlOf(const Json& value) {
  std::string out;
  if (value.is_structured() && !value.empty()) {
    AppendParts(value, "", false, out);
    return out;
  }
  Append(value, "", false, out);
  return out.substr(1);
}

}  // namespace nibble
