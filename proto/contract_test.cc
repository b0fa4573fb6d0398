// Rules for every file of the API contract, checked on its descriptors and comments.
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;
using ::google::protobuf::MethodDescriptor;
using ::google::protobuf::ServiceDescriptor;
using ::google::protobuf::SourceLocation;

// Methods with these prefixes read and change nothing.
constexpr const char* kReading[] = {"Get",  "List", "Describe", "Watch",
                                    "Wait", "Diff", "Stream",   "Read"};

class ContractTest : public testing::Test {
 protected:
  void SetUp() override {
    // With Bazel the descriptor set is in the runfiles; NIBBLE_DESCRIPTORS names it elsewhere.
    const char* const named = std::getenv("NIBBLE_DESCRIPTORS");
    const std::string path = named == nullptr ? "proto/nibble_v1.binpb" : named;
    std::ifstream file(path, std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    google::protobuf::FileDescriptorSet set;
    ASSERT_TRUE(set.ParseFromString(bytes.str())) << path;
    ASSERT_GT(set.file_size(), 10) << path;
    std::set<std::string> built;
    while (built.size() < static_cast<size_t>(set.file_size())) {
      const size_t before = built.size();
      for (const auto& proto : set.file()) {
        bool ready = !built.contains(proto.name());
        for (const std::string& other : proto.dependency()) {
          ready &= built.contains(other) || pool_.FindFileByName(other) != nullptr;
        }
        if (!ready) continue;
        files_.push_back(pool_.BuildFile(proto));
        ASSERT_NE(files_.back(), nullptr) << proto.name();
        built.insert(proto.name());
      }
      ASSERT_GT(built.size(), before) << "imports of files that are not in the set";
    }
  }

  template <class Item>
  static std::string CommentOf(const Item& item) {
    SourceLocation location;
    if (!item.GetSourceLocation(&location)) return "";
    return location.leading_comments + location.trailing_comments;
  }

  template <class F>
  void ForEachMessage(F f) const {
    for (const FileDescriptor* file : files_) {
      for (int i = 0; i < file->message_type_count(); ++i) f(*file->message_type(i));
    }
  }
  template <class F>
  void ForEachEnum(F f) const {
    for (const FileDescriptor* file : files_) {
      for (int i = 0; i < file->enum_type_count(); ++i) f(*file->enum_type(i));
    }
  }
  template <class F>
  void ForEachMethod(F f) const {
    for (const FileDescriptor* file : files_) {
      for (int s = 0; s < file->service_count(); ++s) {
        const ServiceDescriptor& service = *file->service(s);
        for (int m = 0; m < service.method_count(); ++m) f(*service.method(m));
      }
    }
  }

  // Over that of this program, for google/protobuf/descriptor.proto.
  google::protobuf::DescriptorPool pool_{google::protobuf::DescriptorPool::generated_pool()};
  std::vector<const FileDescriptor*> files_;
};

bool Reads(const MethodDescriptor& method) {
  for (const char* const verb : kReading) {
    if (absl::StartsWith(method.name(), verb)) return true;
  }
  return false;
}

// "JOB_STATE_" of JobState.
std::string PrefixOf(const EnumDescriptor& type) {
  std::string prefix;
  for (const char c : type.name()) {
    if (c >= 'A' && c <= 'Z' && !prefix.empty()) prefix += '_';
    prefix += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return prefix + "_";
}

TEST_F(ContractTest, EveryFileIsInTheVersionedPackage) {
  for (const FileDescriptor* file : files_) {
    EXPECT_EQ(file->package(), "nibble.v1") << file->name();
    EXPECT_TRUE(absl::StartsWith(file->name(), "proto/nibble/v1/")) << file->name();
    EXPECT_EQ(file->syntax(), FileDescriptor::SYNTAX_PROTO3) << file->name();
  }
}

TEST_F(ContractTest, EveryMutationCarriesARequestId) {
  int mutations = 0;
  ForEachMethod([&](const MethodDescriptor& method) {
    // In a bidirectional stream, each message is a complete state: repeating one is harmless.
    if (Reads(method) || (method.client_streaming() && method.server_streaming())) return;
    ++mutations;
    const FieldDescriptor* const id = method.input_type()->FindFieldByName("request_id");
    ASSERT_NE(id, nullptr) << method.full_name();
    EXPECT_EQ(id->number(), 1) << method.full_name();
    EXPECT_EQ(id->type(), FieldDescriptor::TYPE_STRING) << method.full_name();
  });
  EXPECT_GT(mutations, 15);
}

TEST_F(ContractTest, EveryMethodHasItsOwnRequestAndResponse) {
  std::set<std::string> types;
  ForEachMethod([&](const MethodDescriptor& method) {
    EXPECT_EQ(method.input_type()->name(), method.name() + "Request");
    EXPECT_EQ(method.output_type()->name(), method.name() + "Response");
    EXPECT_TRUE(types.insert(method.input_type()->full_name()).second);
    EXPECT_TRUE(types.insert(method.output_type()->full_name()).second);
  });
}

TEST_F(ContractTest, EveryMethodListsItsStatusCodes) {
  static const auto* const kCodes = new std::set<std::string>{
      "OK",           "INVALID_ARGUMENT",    "NOT_FOUND",    "ALREADY_EXISTS",
      "ABORTED",      "FAILED_PRECONDITION", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED",
      "UNAVAILABLE",  "DEADLINE_EXCEEDED",   "DATA_LOSS",    "PERMISSION_DENIED",
      "UNIMPLEMENTED"};
  ForEachMethod([&](const MethodDescriptor& method) {
    int codes = 0;
    for (const absl::string_view line : absl::StrSplit(CommentOf(method), '\n')) {
      const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
      if (parts.size() < 2 || !absl::StartsWith(parts[0], "   ")) continue;
      const std::string code = parts[0].substr(3);
      if (code.empty() || code[0] == ' ') continue;
      EXPECT_TRUE(kCodes->contains(code)) << method.full_name() << ": " << code;
      EXPECT_FALSE(parts[1].empty()) << method.full_name() << ": " << code;
      ++codes;
    }
    EXPECT_GT(codes, 0) << method.full_name();
  });
}

TEST_F(ContractTest, EveryEnumBeginsUnspecifiedAndPrefixesItsValues) {
  int enums = 0;
  ForEachEnum([&](const EnumDescriptor& type) {
    ++enums;
    const std::string prefix = PrefixOf(type);
    EXPECT_EQ(type.value(0)->name(), prefix + "UNSPECIFIED");
    EXPECT_EQ(type.value(0)->number(), 0) << type.full_name();
    for (int i = 0; i < type.value_count(); ++i) {
      EXPECT_TRUE(absl::StartsWith(type.value(i)->name(), prefix)) << type.value(i)->full_name();
      EXPECT_EQ(type.value(i)->number(), i) << type.value(i)->full_name();
      EXPECT_FALSE(CommentOf(*type.value(i)).empty()) << type.value(i)->full_name();
    }
  });
  EXPECT_GT(enums, 8);
}

TEST_F(ContractTest, EveryMessageAndFieldHasAComment) {
  ForEachMessage([&](const Descriptor& message) {
    EXPECT_FALSE(CommentOf(message).empty()) << message.full_name();
    for (int i = 0; i < message.field_count(); ++i) {
      if (message.field(i)->containing_oneof() != nullptr && message.name() == "Fact") continue;
      EXPECT_FALSE(CommentOf(*message.field(i)).empty()) << message.field(i)->full_name();
    }
  });
}

TEST_F(ContractTest, TimesAndSizesNameTheirUnit) {
  ForEachMessage([&](const Descriptor& message) {
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      for (const char* const bad : {"_time", "_timeout", "_duration", "_size", "_age"}) {
        EXPECT_FALSE(absl::EndsWith(field.name(), bad)) << field.full_name();
      }
      if (absl::EndsWith(field.name(), "_ms") || absl::EndsWith(field.name(), "_bytes")) {
        EXPECT_EQ(field.type(), FieldDescriptor::TYPE_INT64) << field.full_name();
      }
    }
  });
}

TEST_F(ContractTest, NoFieldIsAMapBecauseItsSerialisedOrderIsUndefined) {
  ForEachMessage([&](const Descriptor& message) {
    for (int i = 0; i < message.field_count(); ++i) {
      EXPECT_FALSE(message.field(i)->is_map()) << message.field(i)->full_name();
    }
  });
}

}  // namespace
}  // namespace nibble
