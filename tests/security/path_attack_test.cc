// Names and paths in requests that lead out of a directory. The fields are read from the
// descriptors: a new one must be declared below, and is attacked from then on.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/process/spawn.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/access.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/gang_meeting.pb.h"
#include "proto/nibble/v1/rank_log.pb.h"
#include "proto/nibble/v1/shard_store.pb.h"
#include "server/controller/testing.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using grpc::StatusCode;

// What a text is used for. Names are parts of paths and keys somewhere; a path is a file's.
enum class TextUse : char { kName, kPath, kText };

// Of each text in a request, by the name of its field.
const std::map<std::string, TextUse>& Uses() {
  static const auto* const uses = new std::map<std::string, TextUse>{
      {"job", TextUse::kName},          {"jobs", TextUse::kName},
      {"worker", TextUse::kName},       {"name", TextUse::kName},
      {"queue", TextUse::kName},        {"project", TextUse::kName},
      {"projects", TextUse::kName},     {"cohort", TextUse::kName},
      {"id", TextUse::kName},           {"destination", TextUse::kPath},
      {"request_id", TextUse::kText},   {"owner", TextUse::kText},
      {"reason", TextUse::kText},       {"token", TextUse::kText},
      {"resume_token", TextUse::kText}, {"at", TextUse::kText},
      {"settings", TextUse::kText},     {"spec_yaml", TextUse::kText},
      {"key", TextUse::kText},          {"value", TextUse::kText},
      {"match", TextUse::kText},        {"preset", TextUse::kText},
      {"operand", TextUse::kText},      {"format", TextUse::kText},
      {"field", TextUse::kText},        {"secret_sha256", TextUse::kText},
  };
  return *uses;
}

// Filters of lists: a name that nothing has lists nothing.
bool IsFilter(const FieldDescriptor& field) {
  return absl::StartsWith(field.containing_type()->name(), "List");
}

// The way from a request to one of its texts: message fields, and the text last.
using Way = std::vector<const FieldDescriptor*>;

void FindTexts(const Descriptor& type, Way& way, std::vector<Way>& found) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    way.push_back(field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) found.push_back(way);
    const bool deeper = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && way.size() < 6;
    if (deeper) FindTexts(*field->message_type(), way, found);
    way.pop_back();
  }
}

void SetText(Message& message, const Way& way, size_t at, const std::string& text) {
  const FieldDescriptor* const field = way[at];
  const auto* const reflection = message.GetReflection();
  if (at + 1 == way.size()) {
    if (field->is_repeated()) {
      reflection->AddString(&message, field, text);
    } else {
      reflection->SetString(&message, field, text);
    }
    return;
  }
  Message* const part = field->is_repeated() ? reflection->AddMessage(&message, field)
                                             : reflection->MutableMessage(&message, field);
  SetText(*part, way, at + 1, text);
}

// Fills what a call needs to come as far as the field under attack.
void Fill(Message& message, const std::vector<Way>& ways, const std::string& job) {
  static int requests = 0;
  for (const Way& way : ways) {
    const FieldDescriptor& field = *way.back();
    if (field.is_repeated() || way.size() > 2) continue;
    // Orphans are of jobs that are not known.
    const bool known = message.GetDescriptor()->name() != "RemoveOrphanRequest";
    if (field.name() == "job") SetText(message, way, 0, known ? job : "train-9");
    if (field.name() == "request_id") {
      SetText(message, way, 0, absl::StrCat("request-path-", ++requests));
    }
    if (field.name() == "spec_yaml") SetText(message, way, 0, TestCoordinator::Spec("train", 1));
  }
}

std::string Name(const Way& way) {
  std::string name = way.front()->containing_type()->name();
  for (const FieldDescriptor* field : way) absl::StrAppend(&name, ".", field->name());
  return name;
}

class PathAttackTest : public testing::Test {
 protected:
  grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                    const std::string& call, const Message& request) {
    return CallWithBytes(channel, token, call, request.SerializeAsString());
  }
  grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& token, const std::string& call,
                             const std::string& bytes) {
    const auto context = CallWith(token);
    // Watches and waits that are admitted go on.
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    const auto made = stub.PrepareCall(context.get(), call, &queue);
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    made->StartCall(nullptr);
    next();
    const grpc::Slice slice(bytes);
    made->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    next();
    grpc::ByteBuffer answer;
    made->Read(&answer, nullptr);
    if (next()) context->TryCancel();  // it was answered
    grpc::Status status;
    made->Finish(&status, nullptr);
    next();
    return status;
  }

  // Sends hostile texts in each name and path of the service's requests.
  void Attack(const char* service, const std::shared_ptr<grpc::Channel>& channel,
              const std::string& token, const std::string& job) {
    const auto* const descriptor = DescriptorPool::generated_pool()->FindServiceByName(service);
    ASSERT_NE(descriptor, nullptr) << service;
    for (int m = 0; m < descriptor->method_count(); ++m) {
      const auto& method = *descriptor->method(m);
      std::vector<Way> ways;
      Way way;
      FindTexts(*method.input_type(), way, ways);
      for (const Way& to : ways) {
        const FieldDescriptor& field = *to.back();
        const auto use = Uses().find(field.name());
        ASSERT_NE(use, Uses().end()) << Name(to) << ": declare what this field is used for";
        if (use->second == TextUse::kText || IsFilter(field)) continue;
        for (const std::string& text : kHostile) {
          const std::unique_ptr<Message> request(
              MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
          Fill(*request, ways, job);
          SetText(*request, to, 0, text);
          const grpc::Status status =
              Call(channel, token, absl::StrCat("/", service, "/", method.name()), *request);
          const StatusCode code = status.error_code();
          EXPECT_TRUE(code == StatusCode::INVALID_ARGUMENT || code == StatusCode::NOT_FOUND)
              << Name(to) << " '" << text << "': " << code << " " << status.error_message();
          ++attacks_;
        }
      }
    }
  }

  // Bytes that are no message, to every call of the service.
  void SendNoise(const char* service, const std::shared_ptr<grpc::Channel>& channel) {
    const auto* const descriptor = DescriptorPool::generated_pool()->FindServiceByName(service);
    for (int m = 0; m < descriptor->method_count(); ++m) {
      const std::string call = absl::StrCat("/", service, "/", descriptor->method(m)->name());
      for (const std::string& noise :
           {std::string(300, '\xff'), std::string("\x0a\x7f", 2), std::string(1, '\0')}) {
        const grpc::Status status = CallWithBytes(channel, "", call, noise);
        EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
        EXPECT_THAT(status.error_message(), testing::HasSubstr(call));
      }
    }
  }

  const std::vector<std::string> kHostile = {"../../escaped",
                                             "/tmp/escaped-nibble",
                                             "a/../../escaped",
                                             "..",
                                             ".",
                                             "a/b",
                                             std::string("a\0b", 3),
                                             "a\nb",
                                             std::string(5000, 'a'),
                                             "%2e%2e%2fescaped",
                                             "\\..\\escaped"};
  SecureCoordinator coordinator_;
  int attacks_ = 0;
};

// Everything in the directory, without what the store and the log are made of.
std::set<std::string> FilesIn(const std::string& directory) {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.insert(entry.path().string());
  return files;
}

TEST_F(PathAttackTest, NoNameOrPathOfARequestLeadsAnywhere) {
  v1::SubmitJobRequest request;
  request.set_request_id("request-1");
  request.set_spec_yaml(TestCoordinator::Spec("train", 1));
  v1::SubmitJobResponse submitted;
  const auto channel = coordinator_.Connect();
  ASSERT_TRUE(v1::Coordinator::NewStub(channel)
                  ->SubmitJob(CallWith(coordinator_.Bootstrap()).get(), request, &submitted)
                  .ok());
  const std::set<std::string> before = FilesIn(coordinator_.directory());
  Attack("nibble.v1.Coordinator", channel, coordinator_.Bootstrap(), submitted.job().id());
  Attack("nibble.v1.Access", channel, coordinator_.Bootstrap(), submitted.job().id());
  EXPECT_GT(attacks_, 300);
  EXPECT_TRUE(coordinator_.process().Lives());
  EXPECT_EQ(FilesIn(coordinator_.directory()), before);
  EXPECT_FALSE(fs::exists("/tmp/escaped-nibble"));
  EXPECT_FALSE(fs::exists(fs::path(coordinator_.directory()).parent_path() / "escaped"));
}

TEST_F(PathAttackTest, NoNameInACallOfAWorkerLeadsOutOfItsDirectory) {
  const TlsFiles files = coordinator_.authority().Issue("w1", {PeerKind::kWorker, "w1"});
  const auto worker = SpawnProcess(
      {.arguments = {BuiltProgram("worker/agent/nibble-worker"), "--coordinator",
                     coordinator_.process().address(), "--data", coordinator_.Path("data-w1"),
                     "--name", "w1", "--http", "", "--tls-cert", files.certificate, "--tls-key",
                     files.key, "--tls-ca", files.authority}});
  ASSERT_EQ(worker.status(), absl::OkStatus());
  v1::DescribeWorkerResponse described;
  v1::DescribeWorkerRequest describe;
  describe.set_worker("w1");
  ASSERT_TRUE(Eventually([&] {
    return v1::Coordinator::NewStub(coordinator_.Connect())
        ->DescribeWorker(CallWith(coordinator_.Bootstrap()).get(), describe, &described)
        .ok();
  }));
  const auto channel = [&](const TlsFiles& own) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(described.worker().identity().address(),
                                     (*Credentials::Make(own))->ForChannelTo(PeerKind::kWorker),
                                     arguments);
  };
  const auto peer = channel(coordinator_.authority().Issue("w2", {PeerKind::kWorker, "w2"}));
  const auto above = channel({.certificate = coordinator_.Path("coordinator.pem"),
                              .key = coordinator_.Path("coordinator-key.pem"),
                              .authority = coordinator_.Path("lab-ca.pem")});
  Attack("nibble.v1.ShardStore", peer, "", "train-1");
  Attack("nibble.v1.GangMeeting", peer, "", "train-1");
  Attack("nibble.v1.RankLogs", above, "", "train-1");
  EXPECT_GT(attacks_, 30);
  SendNoise("nibble.v1.ShardStore", peer);
  SendNoise("nibble.v1.GangMeeting", peer);
  SendNoise("nibble.v1.RankLogs", above);
  EXPECT_FALSE(fs::exists("/tmp/escaped-nibble"));
  ASSERT_EQ(kill(*worker, SIGTERM), 0);
  int ended = 0;
  EXPECT_EQ(waitpid(*worker, &ended, 0), *worker);
}

}  // namespace
}  // namespace nibble
