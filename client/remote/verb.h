// A verb that speaks to the coordinator: the options that all of them have, and what runs it.
//
// Ownership: a Session borrows the flags and owns its client. Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_VERB_H_
#define NIBBLE_CLIENT_REMOTE_VERB_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/local/output_format.h"
#include "client/remote/coordinator_client.h"
#include "google/protobuf/message.h"

namespace nibble {

// --server, --timeout, --output.
struct RemoteFlags {
  std::string server;
  std::string timeout;  // empty: not given
  std::string print = "table";

  bool for_programs() const { return ForPrograms(print); }
};

// "30s", "5m", "1h30m", or seconds as a number. InvalidArgument says what is allowed.
absl::StatusOr<absl::Duration> ParseSeconds(const std::string& text);

// One command under way. What it prints on stdout is data, on stderr chatter.
class Session {
 public:
  Session(std::string command, const RemoteFlags& flags, CoordinatorClient& client)
      : command_(std::move(command)), flags_(flags), client_(client) {}

  CoordinatorClient& client() { return client_; }
  const RemoteFlags& flags() const { return flags_; }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(CoordinatorClient::Method<Request, Response> method,
                                Request request) {
    return client_.Call(method, std::move(request));
  }

  // Every page of a listing in one, which has no next_token.
  template <class Request, class Response>
  absl::StatusOr<Response> CallAllPages(CoordinatorClient::Method<Request, Response> method,
                                        Request request = {}) {
    request.mutable_page()->set_size(1000);
    request.mutable_page()->clear_token();
    Response all;
    do {
      const absl::StatusOr<Response> page = Call(method, request);
      if (!page.ok()) return page.status();
      request.mutable_page()->set_token(page->next_token());
      all.MergeFrom(*page);
    } while (!request.page().token().empty());
    all.clear_next_token();
    return all;
  }

  // "nibble job submit: text", on stderr.
  void Say(const std::string& text) const;
  // On stdout, as it is.
  void Out(const std::string& text) const;
  // `table` for people, else the message's fields.
  absl::Status Print(const google::protobuf::Message& message, const std::string& table) const;
  // The same as the end of a verb: done.
  absl::StatusOr<int> Finish(const google::protobuf::Message& message,
                             const std::string& table) const;
  // Of a stream, for programs: a line of JSON, or a document of YAML, which begins with "---".
  void PrintElement(const google::protobuf::Message& message) const;

 private:
  const std::string command_;
  const RemoteFlags& flags_;
  CoordinatorClient& client_;
};

// What a verb does: the exit code.
using RemoteRun = std::function<absl::StatusOr<int>(Session&)>;

// The three options; --output only where the verb has none yet.
enum class Output { kFormats, kNone };
void AddRemoteOptions(CLI::App* verb, RemoteFlags& flags, Output output = Output::kFormats);
// An option that ParseSeconds takes. Where it does not, the command is used wrongly.
CLI::Option* AddSecondsOption(CLI::App* verb, const std::string& name, std::string& text,
                              const std::string& help);
// What --timeout means to a verb that waits.
void TimeoutEndsWait(CLI::App* verb);
// Finds the coordinator, runs, and tells errors as "nibble job submit: …". `command` is
// "job submit".
int RunRemote(const std::string& command, const RemoteFlags& flags, const RemoteRun& run);

// A verb of the noun with its own copy of `Flags`, which has a RemoteFlags `remote`.
template <class Flags>
class RemoteVerb {
 public:
  RemoteVerb(CLI::App* noun, const std::string& name, const std::string& help,
             Output output = Output::kFormats)
      : flags_(std::make_shared<Flags>()),
        command_(noun->get_name() + " " + name),
        verb_(noun->add_subcommand(name, help)) {
    AddRemoteOptions(verb_, flags_->remote, output);
  }

  Flags* operator->() { return flags_.get(); }
  CLI::App* app() { return verb_; }
  void Runs(int& exit_code, absl::StatusOr<int> (*run)(Session&, const Flags&)) {
    verb_->callback([flags = flags_, command = command_, run, &exit_code] {
      exit_code =
          RunRemote(command, flags->remote, [&](Session& session) { return run(session, *flags); });
    });
  }

 private:
  std::shared_ptr<Flags> flags_;
  std::string command_;
  CLI::App* verb_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_VERB_H_
