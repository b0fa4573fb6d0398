// Standard input, output and error of this process.
//
// Thread-safety: none; for the beginning of main, before threads start.
#ifndef NIBBLE_COMMON_PROCESS_STANDARD_DESCRIPTORS_H_
#define NIBBLE_COMMON_PROCESS_STANDARD_DESCRIPTORS_H_

namespace nibble {

// A program may be started with descriptors 0, 1 or 2 closed (`>&-`, some service managers). The
// next file that it opens would get that number, and what it prints would be written into a
// checkpoint. Puts /dev/null in their place, opened so that reading standard input and writing
// standard output and error fail as if they were still closed.
void ReserveStandardDescriptors();

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_STANDARD_DESCRIPTORS_H_
