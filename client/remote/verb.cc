#include "client/remote/verb.h"

#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/local/exit_code.h"
#include "client/local/finish.h"
#include "client/local/json_text.h"
#include "client/local/json_yaml.h"
#include "client/local/output_format.h"
#include "client/remote/message_json.h"
#include "client/remote/server_address.h"

namespace nibble {
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
  const absl::Status status = Print(message, table);
  if (!status.ok()) return status;
  return kExitDone;
}

void Session::PrintElement(const google::protobuf::Message& message) const {
  const nlohmann::ordered_json json = JsonOf(message);
  Out(flags_.print == "yaml" ? "---\n" + YamlOf(json) : JsonLine(json));
}

void AddRemoteOptions(CLI::App* verb, RemoteFlags& flags, Output output) {
  if (output == Output::kFormats) AddOutputOption(verb, flags.print);
  verb->add_option("--server", flags.server,
                   "host:port of the coordinator; else NIBBLE_SERVER, else the local cluster's");
  AddSecondsOption(
      verb, "--timeout", flags.timeout,
      "how long to try where nobody answers, such as 30s; where not given 10s, and not at "
      "all where nothing listens on this machine");
}

CLI::Option* AddSecondsOption(CLI::App* verb, const std::string& name, std::string& text,
                              const std::string& help) {
  return verb->add_option(name, text, help)->check([](const std::string& given) {
    return std::string(ParseSeconds(given).status().message());
  });
}

void TimeoutEndsWait(CLI::App* verb) {
  verb->get_option("--timeout")
      ->description(
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
