// `nibble checkpoint list | describe | verify | export | pin | unpin | delete` of a job.
//
// The verbs are those of client/local/checkpoint_command.h; a name that is no directory here is a
// job of the cluster, and with --server it always is.
//
// Ownership: the flags are shared with what take_over() gives and with the app's options, which may
// outlive this. Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_CHECKPOINT_VERBS_H_
#define NIBBLE_CLIENT_REMOTE_CHECKPOINT_VERBS_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "client/local/take_over.h"

namespace nibble {

struct CheckpointFlags;

class CheckpointVerbs {
 public:
  CheckpointVerbs();
  // For AddCheckpointCommandWith, which makes the verbs.
  TakeOver take_over() const;
  // Then: the options that only a cluster has.
  void AddOptions(CLI::App& app) const;

 private:
  std::shared_ptr<CheckpointFlags> flags_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_CHECKPOINT_VERBS_H_
