#include "model/mixers.h"

namespace nibble {

// Each is defined in the file of its name.
extern const MixerKind kAttentionMixer;
extern const MixerKind kMlpMixer;
extern const MixerKind kMamba2Mixer;

namespace {

constexpr const MixerKind* kMixers[] = {
    &kAttentionMixer,
    &kMlpMixer,
    &kMamba2Mixer,
};

}  // namespace

std::span<const MixerKind* const> AllMixerKinds() { return kMixers; }

const MixerKind* FindMixerKind(char symbol) {
  for (const MixerKind* mixer : kMixers) {
    if (mixer->symbol == symbol) return mixer;
  }
  return nullptr;
}

}  // namespace nibble
