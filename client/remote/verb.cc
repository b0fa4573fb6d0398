#include "client/remote/verb.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/remote/coordinator_client.h"
#include "client/remote/enum_words.h"
#include "client/remote/job_text.h"
#include "client/remote/rpcs.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/near_name.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// JSON has no such numbers.
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

Json FieldJson(const Message& message, const Reflection& reflection, const FieldDescriptor& field) {
  NIBBLE_VALUE(Get, message, &field);
}

Json ElementJson(const Message& message, const Reflection& reflection, const FieldDescriptor& field,
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
      for (int j = 0; j < count; ++j) list.push_back(ElementJson(message, reflection, field, j));
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      json[field.name()] = FieldJson(message, reflection, field);
    }
  }
  return json;
}

namespace {

absl::Status Ambiguous(const std::string& given, const std::vector<const v1::Job*>& matches) {
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(matches.size(), kNamed); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", matches[i]->id(), " (", Word(matches[i]->state()),
                    ")");
  }
  if (matches.size() > kNamed) absl::StrAppend(&names, " and ", matches.size() - kNamed, " more");
  return absl::InvalidArgumentError(
      absl::StrCat("job: '", given, "' matches ", names, "; give a whole id"));
}

}  // namespace

absl::StatusOr<ChosenJob> ChooseJob(const std::string& given, const std::vector<v1::Job>& jobs) {
  std::vector<const v1::Job*> named, unfinished, prefixed;
  std::vector<std::string> ids;
  for (const v1::Job& job : jobs) {
    if (job.id() == given) return ChosenJob{job, ""};
    if (job.name() == given) named.push_back(&job);
    if (job.name() == given && !IsOver(job.state())) unfinished.push_back(&job);
    if (absl::StartsWith(job.id(), given)) prefixed.push_back(&job);
    ids.push_back(job.id());
  }
  if (named.size() > 1) {
    const bool only = unfinished.size() == 1;
    return ChosenJob{only ? *unfinished[0] : *named[0],
                     absl::StrCat(only ? ", the only unfinished" : ", the newest", " of ",
                                  named.size(), " jobs with this name")};
  }
  const std::vector<const v1::Job*>& found = named.empty() ? prefixed : named;
  if (found.size() == 1) return ChosenJob{*found[0], ""};
  if (!found.empty()) return Ambiguous(given, found);
  const std::string near = NearestName(given, ids);
  return absl::NotFoundError(absl::StrCat("job: there is no '", given, "'; ",
                                          near.empty()
                                              ? std::string("run 'nibble job list' to see the jobs")
                                              : absl::StrCat("did you mean '", near, "'?")));
}

void AddJobOption(Command verb, std::string& job) { verb.Add("JOB", job, kJobHelp).Required(); }

absl::StatusOr<v1::Job> DescribeJob(Session& session, const std::string& id) {
  v1::DescribeJobRequest request;
  request.set_job(id);
  NIBBLE_ASSIGN_OR_RETURN(v1::DescribeJobResponse described, session.Call(kDescribeJob, request));
  return std::move(*described.mutable_job());
}

absl::StatusOr<v1::Job> FindJob(Session& session, const std::string& given) {
  if (given.empty()) return absl::InvalidArgumentError("job: the name is empty");
  absl::StatusOr<v1::Job> exact = DescribeJob(session, given);
  // NotFound: no such id; InvalidArgument: the text cannot be an id.
  if (!absl::IsNotFound(exact.status()) && !absl::IsInvalidArgument(exact.status())) return exact;
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListJobsResponse all, session.client().CallAllPages(kListJobs));
  NIBBLE_ASSIGN_OR_RETURN(ChosenJob chosen,
                          ChooseJob(given, {all.jobs().begin(), all.jobs().end()}));
  session.Say(absl::StrCat("'", given, "' is ", chosen.job.id(), chosen.why));
  return std::move(chosen.job);
}

absl::StatusOr<std::vector<v1::RecipeRevision>> ListRevisions(Session& session,
                                                              const std::string& job) {
  std::vector<v1::RecipeRevision> revisions;
  v1::ListRecipeRevisionsRequest request;
  request.set_job(job);
  request.set_all(true);
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const v1::ListRecipeRevisionsResponse page,
                            session.Call(kListRecipeRevisions, request));
    revisions.insert(revisions.end(), page.revisions().begin(), page.revisions().end());
    if (!page.more() || page.revisions().empty()) return revisions;
    request.set_after_number(revisions.back().number());
  }
}

absl::StatusOr<Reply> RunRemote(const std::string& command, const RemoteFlags& flags,
                                const std::function<absl::StatusOr<Reply>(Session&)>& run) {
  NIBBLE_ASSIGN_OR_RETURN(std::string server, FindServerAddress(flags.server));
  NIBBLE_ASSIGN_OR_RETURN(ClientAccess access, FindAccess(flags, server));
  ClientOptions options = {
      .server = std::move(server), .access = std::move(access), .author = AuthorName()};
  options.say = [&command](const std::string& text) { Tell(command, text); };
  options.fails_at_once = flags.timeout.empty();
  if (!flags.timeout.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseSeconds(flags.timeout));
    options.timeout = timeout;
  }
  // The coordinator's error names the field; Protocol Buffers would also write to stderr about text
  // that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  CoordinatorClient client(std::move(options));
  Session session(command, flags, client);
  return run(session);
}

Reply ReplyOf(const Message& message, std::string text, int exit_code) {
  return {.text = std::move(text), .json = JsonText(JsonOf(message)), .exit_code = exit_code};
}

absl::Duration Session::WaitDeadline() const {
  return flags_.timeout.empty() ? absl::InfiniteDuration()
                                : SteadyNow() + client_.options().timeout;
}

void Session::Out(const std::string& text) const {
  (void)WriteOut(text);  // RunCommandLine reports an error at the end
}

void Session::PrintElement(const Message& message) const {
  const Json json = JsonOf(message);
  Out(flags_.print == "yaml" ? "---\n" + YamlOf(json) : JsonLine(json));
}

}  // namespace nibble
