#include "server/service/reflection_service.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/grpc/reflection/v1/reflection.pb.h"
#include "server/service/admission.h"
#include "server/service/admitted_service.h"
#include "server/service/reactor_gate.h"

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

// The descriptor of v1, renamed to v1alpha.
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

// Answers reflection requests from the descriptors linked into the program. Immutable.
class Descriptors {
 public:
  explicit Descriptors(std::vector<std::string> services) : services_(std::move(services)) {
    pool_.BuildFile(AlphaFile());
    for (const char* const package : {kV1, kV1Alpha}) {
      services_.push_back(absl::StrCat(package, ".ServerReflection"));
    }
  }

  // `sent`: the files already sent on this stream.
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
    // The requested file comes first, even if it was sent before.
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

// Of one caller and version: each may have a response of all descriptors that is not read.
constexpr int kReflectionStreams = 8;

// Reads a request and writes its response in turn. Every request is admitted like any other call.
// An open stream uses no thread, and has a place among its caller's.
class ReflectionReactor
    : public GatedStream<ReflectionReactor,
                         grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>,
                         ServerReflectionResponse> {
 public:
  ReflectionReactor(const Descriptors& descriptors, Admission& admission, const char* call,
                    grpc::CallbackServerContext& context, std::shared_ptr<OpenCall> place)
      : GatedStream(context),
        descriptors_(descriptors),
        admission_(admission),
        call_(call),
        caller_context_(context),
        place_(std::move(place)) {
    const std::shared_ptr<OpenCall> kept = place_;
    const auto gate = gate_;
    gate->Reach(&ReflectionReactor::Pump);
    // This reactor may be gone by now.
    kept->EndWith([gate](const absl::Status& why) { gate->Reach(&ReflectionReactor::End, why); });
  }

  // One at a time, because the next read begins after the response was written.
  void OnReadDone(bool ok) override {
    if (!ok) return gate_->Reach(&ReflectionReactor::End, absl::OkStatus());
    Refusal refusal;
    if (!admission_.Admit(caller_context_, call_, nullptr, refusal)) {
      return gate_->Reach(&ReflectionReactor::End, refusal.status);
    }
    gate_->Reach(&ReflectionReactor::Send, descriptors_.Answer(request_, sent_));
  }

 private:
  friend class GatedStream;

  void Send(ServerReflectionResponse response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (MayWrite()) Write(std::move(response));
  }

  // The response was written, or there was no request yet.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (!ended()) StartRead(&request_);
  }

  void Leave() {}

  const Descriptors& descriptors_;
  Admission& admission_;
  const char* const call_;
  const grpc::CallbackServerContext& caller_context_;
  const std::shared_ptr<OpenCall> place_;
  std::set<const FileDescriptor*> sent_;
  ServerReflectionRequest request_;
};

// gRPC's server reflection, v1 and v1alpha, for clients that do not have the .proto files.
class ReflectionService : public grpc::Service {
 public:
  // `services`: full names of the services that the server has besides reflection.
  ReflectionService(Admission& admission, std::vector<std::string> services)
      : descriptors_(std::move(services)) {
    using Handler =
        grpc::internal::CallbackBidiHandler<ServerReflectionRequest, ServerReflectionResponse>;
    int index = 0;
    // One grpc::Service for both versions, though each is a service of its own to clients.
    for (const char* const call : kCalls) {
      AddMethod(new grpc::internal::RpcServiceMethod(
          call, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
      MarkMethodCallback(
          index++,
          new Handler(
              [this, &admission, call](grpc::CallbackServerContext* context)
                  -> grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>* {
                using Refused = RefusedCall<
                    grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>>;
                Refusal refusal;
                const auto caller = admission.Admit(*context, call, nullptr, refusal);
                if (!caller) return new Refused(std::move(refusal));
                auto place = admission.Open(*caller, call, "", kReflectionStreams);
                if (!place.ok()) return new Refused({.status = place.status()});
                return new ReflectionReactor(descriptors_, admission, call, *context,
                                             *std::move(place));
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
