"""Both directions between Nibble and the installed transformers, for every class of models:

  in         a random model that transformers saves, computed here: the logits of transformers
  out        a random model exported here, loaded by transformers: the logits computed here
  quantised  an NVFP4 export, read by compressed-tensors and by transformers through it
  tokenizer  byte and SentencePiece tokenizers as transformers loads them: the tokens given here

    python live_check.py HF_LOGITS EXPORT_RANDOM EXPORT_TOKENIZER WORK_DIRECTORY

The first three arguments are the programs of the *_main.cc files. Prints a line per check; exits
with 1 where one fails.
"""

import glob
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import make_fixtures  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

TOLERANCE = 1e-4
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
failed = 0


def report(what, difference, bound):
    global failed
    ok = difference <= bound
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}: {difference:.2e}, at most {bound:.0e}", flush=True)


def distance(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


def our_logits(program, directory, tokens, out):
    subprocess.run(
        [program, directory, ",".join(str(t) for t in tokens), out], check=True
    )
    return np.fromfile(out, np.float32).reshape(len(tokens), -1)


def their_logits(model, tokens):
    model.eval()
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def load(directory, **options):
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True, **options
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(kind):
            raise RuntimeError(f"{directory}: {kind}: {sorted(info[kind])[:4]}")
    return model


def check_in(name, logits_program, work):
    make_fixtures.make(name, work)
    directory = os.path.join(work, name)
    expected = load_file(os.path.join(directory, "expected.safetensors"))
    ours = our_logits(
        logits_program, directory, expected["tokens"].tolist(), os.path.join(work, "logits")
    )
    report(f"{name} in", distance(ours, expected["logits"]), TOLERANCE)


def check_out(name, kind, programs, work):
    directory = os.path.join(work, f"{name}-{kind}")
    subprocess.run([programs[1], name, "5", directory, kind], check=True)
    tokens = [(7 * i * i + 3) % 257 for i in range(23)]
    ours = our_logits(programs[0], directory, tokens, os.path.join(work, "logits"))
    theirs = their_logits(load(directory, dtype=torch.float32), tokens)
    report(f"{name} out, {kind}", distance(theirs, ours), TOLERANCE)
    return directory


def check_tokens(what, directory, text, ours, end):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    theirs = tokenizer(text)["input_ids"]
    wrong = sum(a != b for a, b in zip(theirs, ours)) + abs(len(theirs) - len(ours))
    wrong += tokenizer.decode(theirs) != text
    wrong += tokenizer.eos_token_id != end
    report(f"{what} tokenizer, wrong tokens", wrong, 0)


def check_byte_tokenizer(name, directory):
    text = "Straße\n\tA\u0000B 漢字 \U0001f600  x"
    check_tokens(name, directory, text, list(text.encode()), 256)


def check_sentencepiece(kind, program, work):
    directory = os.path.join(work, f"tokenizer-{kind}")
    os.mkdir(directory)
    # Words of up to three syllables, and what real texts have besides.
    syllables = ["ta", "ren", "mo", "li", "sku", "ing", "the", "or", "vel", "ch", "ai", "um"]
    others = ["Straße", "漢字", "1729", "  gap", "a\tb", "\U0001f600"]
    state, words = 1, []
    for _ in range(4000):
        state = state * 48271 % (2**31 - 1)
        parts = [syllables[state // 7**k % len(syllables)] for k in range(1 + state % 3)]
        words.append(others[state % 6] if state % 11 == 0 else "".join(parts))
    text = "".join(word + ("\n" if i % 9 == 8 else " ") for i, word in enumerate(words))
    path = os.path.join(work, "text")
    with open(path, "w", newline="") as f:
        f.write(text)
    printed = subprocess.run(
        [program, kind, path, directory], check=True, stdout=subprocess.PIPE, text=True
    )
    check_tokens(kind, directory, text, [int(line) for line in printed.stdout.split()], 2)


def dequantised(tensors, module):
    """The file's own numbers: code · scale / global scale, in FP32."""
    packed = tensors[module + ".weight_packed"].numpy()
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    values = E2M1[codes & 7] * np.where(codes & 8, np.float32(-1), np.float32(1))
    scale = tensors[module + ".weight_scale"].float().numpy()
    scale = scale / tensors[module + ".weight_global_scale"].numpy()
    return values * np.repeat(scale, 16, axis=1)


def check_quantised(name, programs, work):
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    directory = os.path.join(work, f"{name}-nvfp4")
    subprocess.run([programs[1], name, "5", directory, "nvfp4"], check=True)
    tensors = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        with safe_open(path, "pt") as f:
            tensors.update({key: f.get_tensor(key) for key in f.keys()})
    modules = [key.removesuffix(".weight_packed") for key in tensors if key.endswith("_packed")]
    scheme: QuantizationScheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    worst = 0.0
    for module in modules:
        state = {
            suffix: tensors[f"{module}.{suffix}"]
            for suffix in ("weight_packed", "weight_scale", "weight_global_scale")
        }
        theirs = NVFP4PackedCompressor.decompress(state, scheme)["weight"].float().numpy()
        ours = dequantised(tensors, module)
        worst = max(worst, distance(theirs, ours))
    # compressed-tensors gives BF16.
    report(f"{name} quantised, {len(modules)} modules", worst, 2**-8)

    tokens = [(7 * i * i + 3) % 257 for i in range(23)]
    model = load(directory, dtype=torch.bfloat16)
    plain = load(os.path.join(work, f"{name}-bf16"), dtype=torch.bfloat16)
    unquantised = their_logits(plain, tokens)
    weights = dict(plain.named_parameters())
    for module in modules:
        own = module.replace("backbone.", "model.")
        with torch.no_grad():
            own_weight = torch.from_numpy(dequantised(tensors, module)).bfloat16()
            weights[own + ".weight"].copy_(own_weight)
    theirs = their_logits(model, tokens)
    assert distance(theirs, unquantised) > 1e-2, "quantisation does not show"
    report(f"{name} quantised, logits", distance(theirs, their_logits(plain, tokens)), 1e-3)


def main():
    programs, work = sys.argv[1:4], sys.argv[4]
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    for name in make_fixtures.CONFIGS:
        check_in(name, programs[0], os.path.join(work, "in"))
        check_out(name, "f32", programs, work)
        check_byte_tokenizer(name, check_out(name, "bf16", programs, work))
        if name != "gpt2":
            check_quantised(name, programs, work)
    for kind in ("bpe", "unigram"):
        check_sentencepiece(kind, programs[2], work)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
