#include "worker/trainer/loop/trainer_program.h"

int main(int argc, char** argv) {
  return nibble::RunTrainerProgram(argc, argv, nibble::MakeDevice);
}
