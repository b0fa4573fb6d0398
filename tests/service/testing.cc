#include "tests/service/testing.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace nibble {
namespace {

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

}  // namespace

GenericAnswer CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::vector<std::string>& requests,
                            std::chrono::milliseconds deadline, bool is_stream, size_t most) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  const auto call = stub.PrepareCall(&context, method, &queue);
  // One operation at a time, so that the next event is its completion.
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  GenericAnswer answer;
  call->StartCall(nullptr);
  bool open = done();
  for (const std::string& request : requests) {
    if (!open) break;
    const grpc::Slice slice(request);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    open = done();
  }
  call->WritesDone(nullptr);
  (void)done();
  while (answer.messages.size() < most) {
    grpc::ByteBuffer message;
    call->Read(&message, nullptr);
    if (!done()) break;
    answer.messages.push_back(Text(message));
  }
  if (is_stream && answer.messages.size() == most) context.TryCancel();
  call->Finish(&answer.status, nullptr);
  (void)done();
  queue.Shutdown();
  return answer;
}

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDeepest = 4;
constexpr int kMany = 10'000;

const std::vector<int64_t>& Numbers() {
  static const auto* const numbers = new std::vector<int64_t>{-1,
                                                              0,
                                                              -1000,
                                                              1'000'000,
                                                              std::numeric_limits<int32_t>::min(),
                                                              std::numeric_limits<int32_t>::max(),
                                                              std::numeric_limits<int64_t>::min(),
                                                              std::numeric_limits<int64_t>::max()};
  return *numbers;
}

const std::vector<std::string>& Texts() {
  static const auto* const texts = new std::vector<std::string>{"",
                                                                "x",
                                                                "no-such-thing-1",
                                                                std::string("nul\0byte", 8),
                                                                "line\nend",
                                                                "../../../etc/passwd",
                                                                "\xe2\x80\xae right to left",
                                                                "\xff\xfe",
                                                                "%s%n%x",
                                                                std::string(300, 'a'),
                                                                std::string(70'000, 'b'),
                                                                std::string((1 << 20) + 1, 'c')};
  return *texts;
}

// Sets a field to each bad value of its type, and names the value.
class Values {
 public:
  // `add`: appends an entry to a repeated field instead.
  Values(Message& message, const FieldDescriptor& field, bool add)
      : message_(message), reflection_(*message.GetReflection()), field_(field), add_(add) {}

  void ForEach(const std::function<void(const std::string&)>& use) {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        for (const std::string& text : Texts()) {
          add_ ? reflection_.AddString(&message_, &field_, text)
               : reflection_.SetString(&message_, &field_, text);
          use(absl::StrCat("'", absl::CHexEscape(text.substr(0, 40)), "' of ", text.size(),
                           " bytes"));
        }
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        add_ ? reflection_.AddBool(&message_, &field_, true)
             : reflection_.SetBool(&message_, &field_, true);
        use("true");
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        for (const double value : {std::numeric_limits<double>::quiet_NaN(), -1.0, 1e308,
                                   std::numeric_limits<double>::infinity()}) {
          add_ ? reflection_.AddDouble(&message_, &field_, value)
               : reflection_.SetDouble(&message_, &field_, value);
          use(absl::StrCat(value));
        }
        return;
      case FieldDescriptor::CPPTYPE_ENUM:
        for (const int value : {0, -1, 9999}) {
          add_ ? reflection_.AddEnumValue(&message_, &field_, value)
               : reflection_.SetEnumValue(&message_, &field_, value);
          use(absl::StrCat("enum ", value));
        }
        return;
      default:
        for (const int64_t value : Numbers()) {
          if (SetNumber(value)) use(absl::StrCat(value));
        }
    }
  }

 private:
  bool SetNumber(int64_t value) {
    const auto fits = [value](auto least, auto most) { return value >= least && value <= most; };
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        if (!fits(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())) {
          return false;
        }
        add_ ? reflection_.AddInt32(&message_, &field_, static_cast<int32_t>(value))
             : reflection_.SetInt32(&message_, &field_, static_cast<int32_t>(value));
        return true;
      case FieldDescriptor::CPPTYPE_INT64:
        add_ ? reflection_.AddInt64(&message_, &field_, value)
             : reflection_.SetInt64(&message_, &field_, value);
        return true;
      case FieldDescriptor::CPPTYPE_UINT32:
        if (!fits(0, std::numeric_limits<uint32_t>::max())) return false;
        add_ ? reflection_.AddUInt32(&message_, &field_, static_cast<uint32_t>(value))
             : reflection_.SetUInt32(&message_, &field_, static_cast<uint32_t>(value));
        return true;
      default:
        return false;
    }
  }

  Message& message_;
  const Reflection& reflection_;
  const FieldDescriptor& field_;
  const bool add_;
};

void Walk(Message& message, const std::string& path, int depth,
          const std::function<void(const std::string&)>& use) {
  const Reflection& reflection = *message.GetReflection();
  for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(f);
    const std::string name = absl::StrCat(path, field.name());
    const std::unique_ptr<Message> before(message.New());
    before->CopyFrom(message);
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_message) {
      if (depth == kDeepest) continue;
      Message* const inner = field.is_repeated() ? reflection.AddMessage(&message, &field)
                                                 : reflection.MutableMessage(&message, &field);
      use(absl::StrCat(name, " = {}"));
      Walk(*inner, name + ".", depth + 1, use);
    } else {
      Values(message, field, field.is_repeated()).ForEach([&](const std::string& value) {
        use(absl::StrCat(name, " = ", value));
      });
    }
    message.CopyFrom(*before);
    if (!field.is_repeated()) continue;
    for (int i = 0; i < kMany; ++i) {
      if (is_message) {
        reflection.AddMessage(&message, &field);
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        reflection.AddString(&message, &field, absl::StrCat("entry-", i));
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        reflection.AddEnumValue(&message, &field, 1);
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
        reflection.AddInt32(&message, &field, i);
      }
    }
    use(absl::StrCat(name, " = ", kMany, " entries"));
    message.CopyFrom(*before);
  }
}

}  // namespace

void ForEachBadValue(Message& base,
                     const std::function<void(const std::string&, const Message&)>& use) {
  Walk(base, "", 0, [&](const std::string& what) { use(what, base); });
}

namespace {

// Names of the status codes, by number.
constexpr const char* kNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// The code names that occur in a text.
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
