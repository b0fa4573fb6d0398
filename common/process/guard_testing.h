// Kills what a test leaves running, however the test ends.
//
// Tests start processes that outlive their parents on purpose: a cluster in the background, ranks
// that survive their daemon. A test that fails halfway, or that Bazel kills, would leave them on
// the machine.
//
// Thread-safety: none; for the beginning of main, before threads start.
#ifndef NIBBLE_COMMON_PROCESS_GUARD_TESTING_H_
#define NIBBLE_COMMON_PROCESS_GUARD_TESTING_H_

namespace nibble::process_testing {

// Returns in a new process, which is to run the tests. This process stays behind, ends when the new
// one has ended, and with the same exit code (128 + signal if it was killed). A third one, in a
// process group of its own so that a signal to the tests' group spares it, adopts every orphan
// among the descendants of the tests and kills all descendants, with a line about each on standard
// error, as soon as one of the other two has ended.
void GuardProcesses();

}  // namespace nibble::process_testing

#endif  // NIBBLE_COMMON_PROCESS_GUARD_TESTING_H_
