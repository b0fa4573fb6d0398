#include "server/service/reflection_service.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/server_callback.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "proto/grpc/reflection/v1/reflection.pb.h"
#include "server/service/grpc_status.h"

namespace nibble {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr char kV1[] = "grpc.reflection.v1";
constexpr char kV1Alpha[] = "grpc.reflection.v1alpha";
constexpr const char* kCalls[] = {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                  "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};

// The file of v1 under the names of v1alpha.
FileDescriptorProto AlphaFile() {
  FileDescriptorProto file;
  ServerReflectionRequest::descriptor()->file()->CopyTo(&file);
  file.set_package(kV1Alpha);
  file.set_name(absl::StrReplaceAll(file.name(), {{"/v1/", "/v1alpha/"}}));
  const auto rename = [](std::string& type) {
    type = absl::StrReplaceAll(type,
                               {{absl::StrCat(".", kV1, "."), absl::StrCat(".", kV1Alpha, ".")}});
  };
  for (auto& message : *file.mutable_message_type()) {
    for (auto& field : *message.mutable_field()) {
      if (field.has_type_name()) rename(*field.mutable_type_name());
    }
  }
  for (auto& method : *file.mutable_service(0)->mutable_method()) {
    rename(*method.mutable_input_type());
    rename(*method.mutable_output_type());
  }
  return file;
}

// Answers requests from descriptors. Immutable once made.
class Descriptors {
 public:
  explicit Descriptors(std::vector<std::string> services) : services_(std::move(services)) {
    // Linked in, so that what gRPC serves is described, too.
    (void)grpc::health::v1::HealthCheckRequest::descriptor();
    pool_.BuildFile(AlphaFile());
    for (const char* const package : {kV1, kV1Alpha}) {
      services_.push_back(absl::StrCat(package, ".ServerReflection"));
    }
  }

  // `sent`: files that this stream has been sent.
  ServerReflectionResponse Answer(const ServerReflectionRequest& request,
                                  std::set<const FileDescriptor*>& sent) const {
    ServerReflectionResponse answer;
    answer.set_valid_host(request.host());
    *answer.mutable_original_request() = request;
    switch (request.message_request_case()) {
      case ServerReflectionRequest::kFileByFilename:
        AddFile(pool_.FindFileByName(request.file_by_filename()), request.file_by_filename(), sent,
                answer);
        break;
      case ServerReflectionRequest::kFileContainingSymbol:
        AddFile(pool_.FindFileContainingSymbol(request.file_containing_symbol()),
                request.file_containing_symbol(), sent, answer);
        break;
      case ServerReflectionRequest::kFileContainingExtension: {
        const auto& wanted = request.file_containing_extension();
        const Descriptor* const type = pool_.FindMessageTypeByName(wanted.containing_type());
        const FieldDescriptor* const extension =
            type == nullptr ? nullptr
                            : pool_.FindExtensionByNumber(type, wanted.extension_number());
        AddFile(
            extension == nullptr ? nullptr : extension->file(),
            absl::StrCat("extension ", wanted.extension_number(), " of ", wanted.containing_type()),
            sent, answer);
        break;
      }
      case ServerReflectionRequest::kAllExtensionNumbersOfType:
        AddExtensions(request.all_extension_numbers_of_type(), answer);
        break;
      case ServerReflectionRequest::kListServices:
        for (const std::string& name : services_) {
          answer.mutable_list_services_response()->add_service()->set_name(name);
        }
        break;
      case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
        SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request: not set", answer);
        break;
    }
    return answer;
  }

 private:
  static void SetError(grpc::StatusCode code, const std::string& message,
                       ServerReflectionResponse& answer) {
    answer.mutable_error_response()->set_error_code(code);
    answer.mutable_error_response()->set_error_message(message);
  }

  static void AddFile(const FileDescriptor* file, const std::string& wanted,
                      std::set<const FileDescriptor*>& sent, ServerReflectionResponse& answer) {
    if (file == nullptr) {
      return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat(wanted, ": not found"), answer);
    }
    auto& files = *answer.mutable_file_descriptor_response();
    // What is asked for comes first, also where it was sent before.
    std::vector<const FileDescriptor*> left = {file};
    sent.erase(file);
    while (!left.empty()) {
      const FileDescriptor* const next = left.back();
      left.pop_back();
      if (!sent.insert(next).second) continue;
      FileDescriptorProto proto;
      next->CopyTo(&proto);
      files.add_file_descriptor_proto(proto.SerializeAsString());
      for (int i = 0; i < next->dependency_count(); ++i) left.push_back(next->dependency(i));
    }
  }

  void AddExtensions(const std::string& type_name, ServerReflectionResponse& answer) const {
    const Descriptor* const type = pool_.FindMessageTypeByName(type_name);
    if (type == nullptr) {
      return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat(type_name, ": not found"), answer);
    }
    auto& numbers = *answer.mutable_all_extension_numbers_response();
    numbers.set_base_type_name(type_name);
    std::vector<const FieldDescriptor*> extensions;
    pool_.FindAllExtensions(type, &extensions);
    for (const FieldDescriptor* const one : extensions) {
      numbers.add_extension_number(one->number());
    }
  }

  DescriptorPool pool_{DescriptorPool::generated_pool()};
  std::vector<std::string> services_;
};

// One request, one response, in turn: nothing of it runs at the same time.
class ReflectionReactor
    : public grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse> {
 public:
  ReflectionReactor(const Descriptors& descriptors, Admission& admission,
                    const grpc::CallbackServerContext& context)
      : descriptors_(descriptors), admission_(admission), context_(context) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    const absl::Status admitted = admission_.Admit(context_).status();
    if (!admitted.ok()) return Finish(ToGrpc(admitted));
    response_ = descriptors_.Answer(request_, sent_);
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }

  void OnDone() override { delete this; }

 private:
  const Descriptors& descriptors_;
  Admission& admission_;
  const grpc::CallbackServerContext& context_;
  std::set<const FileDescriptor*> sent_;
  ServerReflectionRequest request_;
  ServerReflectionResponse response_;
};

class ReflectionService : public grpc::Service {
 public:
  ReflectionService(Admission& admission, std::vector<std::string> services)
      : descriptors_(std::move(services)) {
    using Handler =
        grpc::internal::CallbackBidiHandler<ServerReflectionRequest, ServerReflectionResponse>;
    int index = 0;
    // One service to whoever registers it, though each version is a name of its own.
    for (const char* const call : kCalls) {
      AddMethod(new grpc::internal::RpcServiceMethod(
          call, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
      MarkMethodCallback(index++,
                         new Handler([this, &admission](grpc::CallbackServerContext* context) {
                           return new ReflectionReactor(descriptors_, admission, *context);
                         }));
    }
  }

 private:
  const Descriptors descriptors_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(Admission& admission,
                                                     std::vector<std::string> services) {
  return std::make_unique<ReflectionService>(admission, std::move(services));
}

}  // namespace nibble
