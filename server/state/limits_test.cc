#include "server/state/limits.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/metrics.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/shard_store.pb.h"
#include "proto/nibble/v1/update.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;

// Every file of messages of ours: those that the services import, and their imports, without those
// that declare options.
std::vector<const FileDescriptor*> Files() {
  std::vector<const FileDescriptor*> files = {v1::Update::descriptor()->file(),
                                              v1::ShardRef::descriptor()->file(),
                                              v1::ConnectRequest::descriptor()->file(),
                                              v1::SubmitJobRequest::descriptor()->file(),
                                              v1::PinCheckpointRequest::descriptor()->file(),
                                              v1::SetQueueRequest::descriptor()->file(),
                                              v1::SetRecipeRequest::descriptor()->file(),
                                              v1::DrainWorkerRequest::descriptor()->file(),
                                              v1::StepSample::descriptor()->file()};
  for (size_t i = 0; i < files.size(); ++i) {
    for (int d = 0; d < files[i]->dependency_count(); ++d) files.push_back(files[i]->dependency(d));
  }
  return files;
}

TEST(Bounds, EveryTextAndListFieldOfTheProtosHasOne) {
  int fields = 0;
  for (const FileDescriptor* file : Files()) {
    if (file->extension_count() > 0 || file->package() == "google.protobuf") continue;
    for (int m = 0; m < file->message_type_count(); ++m) {
      const Descriptor* const message = file->message_type(m);
      for (int f = 0; f < message->field_count(); ++f) {
        const FieldDescriptor& field = *message->field(f);
        const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
        if (!text && !field.is_repeated()) continue;
        ++fields;
        const auto limit = LimitOf(field);
        ASSERT_TRUE(limit.has_value()) << field.full_name();
        if (text && field.is_repeated()) {
          EXPECT_GT(limit->most_each, 0) << field.full_name();
        }
      }
    }
  }
  EXPECT_GT(fields, 200);
}

TEST(Bounds, ATextAtItsBoundPassesAndOneByteMoreDoesNot) {
  v1::Update update;
  v1::JobMoved& moved = *update.add_facts()->mutable_job_moved();
  moved.set_reason(std::string(kMaxReasonBytes, 'x'));
  EXPECT_EQ(CheckBounds(update), absl::OkStatus());
  moved.set_reason(std::string(kMaxReasonBytes + 1, 'x'));
  const absl::Status status = CheckBounds(update);
  EXPECT_EQ(status.message().substr(0, 26), "facts[0].job_moved.reason:");
}

TEST(Bounds, AListAtItsBoundPassesAndOneEntryMoreDoesNot) {
  v1::JobScheduling scheduling;
  for (int i = 0; i < kMaxAllowedRanks; ++i) scheduling.add_allowed_ranks(i);
  EXPECT_EQ(CheckBounds(scheduling), absl::OkStatus());
  scheduling.add_allowed_ranks(0);
  EXPECT_EQ(CheckBounds(scheduling),
            absl::InvalidArgumentError("allowed_ranks: has 65 entries; at most 64 are allowed"));
}

TEST(Bounds, ControlCharactersAreRefusedInOneLineTexts) {
  v1::KillJobRequest request;
  request.set_reason("two\nlines");
  EXPECT_FALSE(CheckBounds(request).ok());
  v1::SubmitJobRequest submit;
  submit.set_spec_yaml("name: a\n");
  EXPECT_EQ(CheckBounds(submit), absl::OkStatus());
}

TEST(Bounds, TextsMustBeUtf8) {
  v1::KillJobRequest request;
  for (const char* good : {"", "plain", "naïve", "→", "\xf0\x9f\x98\x80"}) {
    request.set_reason(good);
    EXPECT_EQ(CheckBounds(request), absl::OkStatus()) << good;
  }
  for (const char* bad : {"\x80", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80", "\xf5\x80\x80\x80",
                          "\xe0\x80\x80", "\xf4\x90\x80\x80", "a\xff"}) {
    request.set_reason(bad);
    EXPECT_FALSE(CheckBounds(request).ok());
  }
}

TEST(Bounds, AClippedTextEndsAtACharacterBoundary) {
  EXPECT_EQ(Clip("a→b", 4), "a→");
  EXPECT_EQ(Clip("a→b", 3), "a");
  EXPECT_EQ(Clip("a→b", 100), "a→b");
  EXPECT_EQ(Clip("ok\xff", 100), "ok");
  EXPECT_EQ(OneLine("one\ntwo"), "one two");
}

TEST(Bounds, CharactersThatNobodySeesAreBlanksInReasons) {
  // "user", then a mark after which the rest reads from right to left.
  for (const char* unseen : {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e",
                             "\u2066", "\u2069", "\xc2\x80", "\xc2\x9f"}) {
    const std::string text = absl::StrCat("user", unseen, "txe");
    EXPECT_TRUE(HasUnseen(text)) << text;
    EXPECT_EQ(OneLine(text), "user txe");
  }
  for (const char* seen : {"", "→", "שלום", "\u200d", "\u2027", "\u202f", "\u2065", "\u206a",
                           "\u061b", "\u00a0", "\xe2"}) {
    EXPECT_FALSE(HasUnseen(seen)) << seen;
    EXPECT_EQ(WithoutUnseen(seen), seen);
  }
}

TEST(Bounds, UnknownFieldsAreRefusedByPathAndNumber) {
  v1::KillJobRequest request;
  std::string bytes = "\xf8\x07\x01";  // field 127, a number
  ASSERT_TRUE(request.ParseFromString(bytes));
  EXPECT_EQ(CheckBounds(request),
            absl::FailedPreconditionError("has field 127, which this program does not know"));
  v1::Update update;
  update.add_facts();
  ASSERT_TRUE(update.add_facts()->mutable_job_moved()->ParseFromString(bytes));
  EXPECT_EQ(CheckBounds(update),
            absl::FailedPreconditionError(
                "facts[1].job_moved: has field 127, which this program does not know"));
}

TEST(Bounds, NamesHaveNoSeparators) {
  for (const char* good : {"a", "train-7", "A.b_c-9"}) EXPECT_TRUE(CheckName("n", good).ok());
  for (const char* bad : {"", "-a", ".a", "a/b", "a b", "ä"}) {
    EXPECT_FALSE(CheckName("n", bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace nibble
