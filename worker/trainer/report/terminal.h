// What a file descriptor is connected to.
//
// Thread-safety: safe.
#ifndef NIBBLE_WORKER_TRAINER_REPORT_TERMINAL_H_
#define NIBBLE_WORKER_TRAINER_REPORT_TERMINAL_H_

namespace nibble {

bool IsTerminal(int file);

// 80 where it is no terminal, or one that does not know.
int TerminalColumns(int file);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_REPORT_TERMINAL_H_
