#include "server/backup/backup_command.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "server/backup/backup_request.h"
#include "server/store/backups.h"

namespace nibble {
namespace {

constexpr int kUsage = 2;

struct Arguments {
  std::string directory;
  std::string store;
  uint32_t id = 0;  // 0: not given
  double timeout = 60;
};

std::string Line(const StoreBackup& backup) {
  return absl::StrCat("backup ", backup.id, " of ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", backup.made, absl::UTCTimeZone()),
                      ", cluster ", backup.cluster, ", updates up to ", backup.last_sequence);
}

absl::Status BackUpNow(const Arguments& arguments) {
  const std::string request =
      absl::StrCat("request of process ", getpid(), " at ", absl::ToUnixNanos(absl::Now()));
  NIBBLE_ASSIGN_OR_RETURN(bool runs, AnswersBackupRequests(arguments.directory));
  if (runs) NIBBLE_RETURN_IF_ERROR(WriteBackupRequest(arguments.directory, request));
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(arguments.timeout);
  while (runs && std::chrono::steady_clock::now() < deadline) {
    // Before the answer is read: one that has just ended may have given it.
    NIBBLE_ASSIGN_OR_RETURN(runs, AnswersBackupRequests(arguments.directory));
    const auto answer = ReadBackupAnswer(arguments.directory, request);
    if (!answer.has_value()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    if (!answer->ok()) return answer->status();
    std::printf("made backup %u in %s\n", **answer, arguments.directory.c_str());
    return absl::OkStatus();
  }
  (void)RemoveBackupRequest(arguments.directory);
  if (!runs) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no coordinator runs with --backup-directory ", arguments.directory, "; start one"));
  }
  return absl::DeadlineExceededError(absl::StrCat("the coordinator of ", arguments.directory,
                                                  " has not answered within ", arguments.timeout,
                                                  " s"));
}

absl::Status PrintBackups(const Arguments& arguments) {
  NIBBLE_ASSIGN_OR_RETURN(const StoreBackups backups, ListBackups(arguments.directory));
  TextTable table({"BACKUP", "MADE", "CLUSTER", "UPDATES", "BYTES"});
  for (const StoreBackup& backup : backups.intact) {
    table.Add({absl::StrCat(backup.id),
               absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", backup.made, absl::UTCTimeZone()),
               backup.cluster, absl::StrCat(backup.last_sequence), absl::StrCat(backup.bytes)});
  }
  std::fputs(table.Text().c_str(), stdout);
  for (const StoreBackups::Damaged& damaged : backups.damaged) {
    std::fprintf(stderr, "damaged: %s\n", std::string(damaged.why.message()).c_str());
  }
  return absl::OkStatus();
}

// One backup or, without --id, all of them.
absl::Status CheckBackups(const Arguments& arguments) {
  NIBBLE_ASSIGN_OR_RETURN(const StoreBackups backups, ListBackups(arguments.directory));
  int damaged = 0;
  bool found = false;
  for (const StoreBackup& backup : backups.intact) {
    if (arguments.id != 0 && backup.id != arguments.id) continue;
    found = true;
    const absl::Status status = CheckBackup(arguments.directory, backup.id);
    if (!status.ok()) ++damaged;
    std::printf("%s: %s\n", Line(backup).c_str(),
                status.ok() ? "intact" : std::string(status.message()).c_str());
  }
  for (const StoreBackups::Damaged& one : backups.damaged) {
    if (arguments.id != 0 && one.id != arguments.id) continue;
    found = true;
    ++damaged;
    std::printf("%s\n", std::string(one.why.message()).c_str());
  }
  if (damaged > 0) return absl::DataLossError(absl::StrCat(damaged, " backups are damaged"));
  if (found) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no such backup in ", arguments.directory));
}

absl::Status Restore(const Arguments& arguments) {
  NIBBLE_ASSIGN_OR_RETURN(const StoreBackup backup,
                          RestoreBackup(arguments.directory, arguments.id, arguments.store));
  std::printf("restored %s to %s\nstart: nibble-coordinator --store %s --cluster %s\n",
              Line(backup).c_str(), arguments.store.c_str(), arguments.store.c_str(),
              backup.cluster.c_str());
  return absl::OkStatus();
}

}  // namespace

int RunBackupCommand(int argc, const char* const* argv) {
  Arguments arguments;
  CommandLine app("Backups of the coordinator's store", "nibble-coordinator backup");
  app.RequireSubcommand();
  const Command now = app.AddSubcommand("now", "have the running coordinator make a backup");
  const Command list = app.AddSubcommand("list", "list the backups in a directory");
  const Command check =
      app.AddSubcommand("check", "read backups and verify their checksums; 1: some are damaged");
  const Command restore = app.AddSubcommand(
      "restore", "write a backup as a new store; the coordinator that opens it begins a new epoch");
  for (const Command& command : {now, list, check, restore}) {
    command.Add("DIRECTORY", arguments.directory, "of --backup-directory").Required();
  }
  now.Add("--timeout", arguments.timeout, "seconds to wait for the backup")
      .InRange(0.0, 86'400.0)
      .ShowDefault();
  for (const Command& command : {check, restore}) {
    command
        .Add("--id", arguments.id,
             command.Name() == "check" ? "number of one backup" : "number; default: the newest")
        .InRange(1, 2'000'000'000);
  }
  restore.Add("--store", arguments.store, "directory of the new store; new or empty").Required();
  if (const std::optional<int> ended = app.Parse(argc, argv, kUsage)) return *ended;
  const absl::Status status = now.Parsed()     ? BackUpNow(arguments)
                              : list.Parsed()  ? PrintBackups(arguments)
                              : check.Parsed() ? CheckBackups(arguments)
                                               : Restore(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "nibble-coordinator backup: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace nibble
