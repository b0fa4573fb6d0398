// The alert on the age of backups: their directory breaks, while the coordinator runs and before it
// starts.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "client/cluster/cluster_files.h"
#include "gtest/gtest.h"
#include "tests/metrics/scraped_cluster.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::string MakeBackupsRoot() {
  std::string root = "/tmp/nibble-backups-XXXXXX";
  EXPECT_NE(mkdtemp(root.data()), nullptr);
  return root;
}

class BackupAlert : public ScrapedCluster {
 protected:
  BackupAlert() : BackupAlert(MakeBackupsRoot()) {}
  ~BackupAlert() override { fs::remove_all(root_); }

  // As a disk that is no longer mounted: nothing can be written there.
  void Break() {
    fs::rename(Backups(), root_ + "/away");
    std::ofstream(Backups()) << "not a directory\n";
  }
  void Repair() {
    fs::remove(Backups());
    fs::rename(root_ + "/away", Backups());
  }

 private:
  explicit BackupAlert(const std::string& root)
      : ScrapedCluster({.workers = 1,
                        .coordinator_flags = {"--backup-directory", root + "/backups",
                                              // Minutes: three seconds.
                                              "--backup-every", "0.05"}}),
        root_(root) {}
  std::string Backups() const { return root_ + "/backups"; }

  const std::string root_;
};

TEST_F(BackupAlert, FiresWhenNoBackupIsMadeAndEndsWithTheNextOne) {
  ASSERT_NE(prometheus_, nullptr);
  AwaitScrapes();
  Await("nibble_backups_total{result=\"made\"} >= 3");
  EXPECT_FALSE(Fires("NibbleBackupOld", "local"));
  Break();
  AwaitFiring("NibbleBackupOld", "local");
  Repair();
  AwaitResolved("NibbleBackupOld", "local");

  // A coordinator that finds no backup and can make none.
  Break();
  bed_.Kill(kCoordinatorRole);
  bed_.Restart(kCoordinatorRole);
  Await("absent(nibble_backup_time_seconds) and on () nibble_backups_total{result=\"failed\"} > 0");
  AwaitFiring("NibbleBackupOld", "local");
  Repair();
  AwaitResolved("NibbleBackupOld", "local");
}

}  // namespace
}  // namespace nibble
