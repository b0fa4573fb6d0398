// nibble-trainer: trains one job on this machine, alone or as one rank of a group.
//
//   nibble-trainer --spec job.yaml                    every rank of the spec
//   nibble-trainer --spec job.yaml --rank 1 --world 2 --rendezvous tcp:host:port
//
// The exit code names the cause of its end: worker/link/trainer_exit.h.
//
// Thread-safety: once per process.
#ifndef NIBBLE_WORKER_TRAINER_LOOP_TRAINER_PROGRAM_H_
#define NIBBLE_WORKER_TRAINER_LOOP_TRAINER_PROGRAM_H_

#include "worker/trainer/loop/train_device.h"

namespace nibble {

// The program's main(), on the devices of `factory`.
int RunTrainerProgram(int argc, char** argv, const DeviceFactory& factory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LOOP_TRAINER_PROGRAM_H_
