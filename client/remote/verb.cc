#include "client/remote/verb.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/rpcs.h"
#include "client/remote/text.h"
#include "common/command_line/command_line.h"
#include "common/near_name.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// JSON cannot express these as numbers.
Json NumberJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json EnumJson(const FieldDescriptor& field, int number) {
  const auto* const value = field.enum_type()->FindValueByNumber(number);
  return value == nullptr ? Json(number) : Json(value->name());
}

Json TextJson(const FieldDescriptor& field, const std::string& text) {
  return field.type() == FieldDescriptor::TYPE_BYTES ? Json(absl::Base64Escape(text)) : Json(text);
}

#define NIBBLE_VALUE(Get, ...)                                        \
  switch (field.cpp_type()) {                                         \
    case FieldDescriptor::CPPTYPE_INT32:                              \
      return reflection.Get##Int32(__VA_ARGS__);                      \
    case FieldDescriptor::CPPTYPE_INT64:                              \
      return reflection.Get##Int64(__VA_ARGS__);                      \
    case FieldDescriptor::CPPTYPE_UINT32:                             \
      return reflection.Get##UInt32(__VA_ARGS__);                     \
    case FieldDescriptor::CPPTYPE_UINT64:                             \
      return reflection.Get##UInt64(__VA_ARGS__);                     \
    case FieldDescriptor::CPPTYPE_DOUBLE:                             \
      return NumberJson(reflection.Get##Double(__VA_ARGS__));         \
    case FieldDescriptor::CPPTYPE_FLOAT:                              \
      return NumberJson(reflection.Get##Float(__VA_ARGS__));          \
    case FieldDescriptor::CPPTYPE_BOOL:                               \
      return reflection.Get##Bool(__VA_ARGS__);                       \
    case FieldDescriptor::CPPTYPE_ENUM:                               \
      return EnumJson(field, reflection.Get##EnumValue(__VA_ARGS__)); \
    case FieldDescriptor::CPPTYPE_STRING:                             \
      return TextJson(field, reflection.Get##String(__VA_ARGS__));    \
    case FieldDescriptor::CPPTYPE_MESSAGE:                            \
      return JsonOf(reflection.Get##Message(__VA_ARGS__));            \
  }                                                                   \
  return Json()

Json Single(const Message& message, const Reflection& reflection, const FieldDescriptor& field) {
  NIBBLE_VALUE(Get, message, &field);
}

Json Element(const Message& message, const Reflection& reflection, const FieldDescriptor& field,
             int index) {
  NIBBLE_VALUE(GetRepeated, message, &field, index);
}
#undef NIBBLE_VALUE

}  // namespace

Json JsonOf(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  Json json = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) {
      Json& list = json[field.name()] = Json::array();
      const int count = reflection.FieldSize(message, &field);
      for (int j = 0; j < count; ++j) list.push_back(Element(message, reflection, field, j));
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      json[field.name()] = Single(message, reflection, field);
    }
  }
  return json;
}

namespace {

absl::Status Ambiguous(const std::string& given, const std::vector<const v1::Job*>& found) {
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(found.size(), kNamed); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", found[i]->id(), " (", Word(found[i]->state()), ")");
  }
  if (found.size() > kNamed) absl::StrAppend(&names, " and ", found.size() - kNamed, " more");
  return absl::InvalidArgumentError(
      absl::StrCat("job: '", given, "' may be ", names, "; say the whole id"));
}

}  // namespace

absl::StatusOr<v1::Job> ChooseJob(const std::string& given, const std::vector<v1::Job>& jobs) {
  std::vector<const v1::Job*> named, begun;
  std::vector<std::string> ids;
  for (const v1::Job& job : jobs) {
    if (job.id() == given) return job;
    if (job.name() == given) named.push_back(&job);
    if (absl::StartsWith(job.id(), given)) begun.push_back(&job);
    ids.push_back(job.id());
  }
  const std::vector<const v1::Job*>& found = named.empty() ? begun : named;
  if (found.size() == 1) return *found[0];
  if (!found.empty()) return Ambiguous(given, found);
  const std::string near = NearestName(given, ids);
  return absl::NotFoundError(absl::StrCat("job: there is no '", given, "'",
                                          near.empty() ? "" : "; did you mean '", near,
                                          near.empty() ? "" : "'?"));
}

absl::StatusOr<std::vector<v1::Job>> ListAllJobs(Session& session, v1::ListJobsRequest request) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobsResponse all,
                          session.CallAllPages(kListJobs, std::move(request)));
  return std::vector<v1::Job>(all.jobs().begin(), all.jobs().end());
}

void AddJobOption(Command verb, std::string& job) {
  verb.Add("JOB", job, "id, such as train-7, or a name or beginning that only one has").Required();
}

absl::StatusOr<v1::Job> FindJob(Session& session, const std::string& given) {
  if (given.empty()) return absl::InvalidArgumentError("job: '' is no job");
  v1::DescribeJobRequest request;
  request.set_job(given);
  absl::StatusOr<v1::DescribeJobResponse> exact = session.Call(kDescribeJob, request);
  if (exact.ok()) return std::move(*exact->mutable_job());
  // NotFound: no such id; InvalidArgument: the text cannot be an id.
  if (!absl::IsNotFound(exact.status()) && !absl::IsInvalidArgument(exact.status())) {
    return exact.status();
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, ListAllJobs(session, {}));
  absl::StatusOr<v1::Job> job = ChooseJob(given, jobs);
  if (job.ok()) session.Say(absl::StrCat("'", given, "' is ", job->id()));
  return job;
}

namespace {

absl::StatusOr<int> FindAndRun(const std::string& command, const RemoteFlags& flags,
                               const RemoteRun& run) {
  absl::StatusOr<std::string> server = FindServerAddress(flags.server);
  if (!server.ok()) return server.status();
  ClientOptions options = {.server = *std::move(server), .author = AuthorName()};
  options.say = [&command](const std::string& text) { Tell(command, text); };
  options.fails_at_once = flags.timeout.empty();
  if (!flags.timeout.empty()) {
    const absl::StatusOr<absl::Duration> timeout = ParseSeconds(flags.timeout);
    if (!timeout.ok()) return timeout.status();
    options.timeout = *timeout;
  }
  CoordinatorClient client(std::move(options));
  Session session(command, flags, client);
  return run(session);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseSeconds(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "'; allowed: seconds, or such as 500ms, 30s, 1h30m"));
  }
  constexpr absl::Duration kMost = absl::Hours(24 * 365);
  if (duration <= absl::ZeroDuration() || duration > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "'; allowed: above 0, up to 8760h"));
  }
  return duration;
}

void Session::Say(const std::string& text) const { Tell(command_, text); }

void Session::Out(const std::string& text) const {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::Status Session::Print(const google::protobuf::Message& message,
                            const std::string& table) const {
  if (!flags_.for_programs()) {
    Out(table);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> text = InFormat(flags_.print, JsonText(JsonOf(message)));
  if (text.ok()) Out(*text);
  return text.status();
}

absl::StatusOr<int> Session::Finish(const google::protobuf::Message& message,
                                    const std::string& table) const {
  NIBBLE_RETURN_IF_ERROR(Print(message, table));
  return kExitDone;
}

void Session::PrintElement(const google::protobuf::Message& message) const {
  const nlohmann::ordered_json json = JsonOf(message);
  Out(flags_.print == "yaml" ? "---\n" + YamlOf(json) : JsonLine(json));
}

void AddRemoteOptions(Command verb, RemoteFlags& flags, Output output) {
  if (output == Output::kFormats) AddOutputOption(verb, flags.print);
  verb.Add("--server", flags.server,
           "host:port of the coordinator; else NIBBLE_SERVER, else the local cluster's");
  AddSecondsOption(
      verb, "--timeout", flags.timeout,
      "how long to try where nobody answers, such as 30s; where not given 10s, and not at "
      "all where nothing listens on this machine");
}

Option AddSecondsOption(Command verb, const std::string& name, std::string& text,
                        const std::string& help) {
  return verb.Add(name, text, help).Check([](const std::string& given) {
    return std::string(ParseSeconds(given).status().message());
  });
}

void TimeoutEndsWait(Command verb) {
  verb.GetOption("--timeout")
      .Describe(
          "how long to wait for the end, such as 30s, and to try where nobody answers; where not "
          "given it waits on, and tries for 10s, or not at all where nothing listens on this "
          "machine");
}

int RunRemote(const std::string& command, const RemoteFlags& flags, const RemoteRun& run) {
  const absl::StatusOr<int> code = FindAndRun(command, flags, run);
  if (code.ok()) return *code;
  Tell(command, std::string(code.status().message()));
  return ExitCodeOf(code.status());
}

}  // namespace nibble
