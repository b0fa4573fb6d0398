"""Compares Nibble with the installed transformers in both directions, for every model class:

  in         a random model saved by transformers: Nibble's logits against transformers'
  out        a random model exported by Nibble: transformers' logits against Nibble's
  quantised  an NVFP4 export, read by compressed-tensors and by transformers through it
  exported   exported byte, SentencePiece and tokenizer.json tokenizers, loaded by AutoTokenizer
             without the package sentencepiece: its tokens against Nibble's
  read       tokenizer.json of every supported kind, trained by Hugging Face's tokenizers: Nibble's
             tokens against theirs, on the texts of this repository and random Unicode

    python live_check.py HF_LOGITS EXPORT_RANDOM EXPORT_TOKENIZER ENCODE_TEXTS WORK_DIRECTORY

The first four arguments are the programs of the *_main.cc files. Prints a line per check; exits
with 1 if one fails.
"""

import glob
import importlib.util
import os
import random
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import make_fixtures  # noqa: E402
import make_tokenizers  # noqa: E402
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


def random_texts(count):
    """Texts mainly of characters with special treatment in tokenizers, and of all others."""
    draw = random.Random(1)
    often = [chr(c) for c in range(1, 128)] * 3 + [" "] * 60 + ["\n"] * 20 + ["'"] * 10
    often += list("sStTrReEvVmMlLdD") * 4 + ["<|end|>", "nibble", "\u2581", "\u00a0"]
    texts = []
    for _ in range(count):
        characters = []
        for _ in range(draw.randint(1, 40)):
            kind = draw.random()
            if kind < 0.75:
                characters.append(draw.choice(often))
            elif kind < 0.9:
                characters.append(chr(draw.randint(0x80, 0xD7FF)))
            else:
                characters.append(chr(draw.randint(0xE000, 0x10FFFF)))
        texts.append("".join(characters))
    return texts


def every_character():
    """Texts of 64 characters each, between letters, that together contain all of Unicode."""
    points = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    return ["x".join(chr(c) for c in points[i : i + 64]) for i in range(0, len(points), 64)]


def repository_texts():
    texts = []
    for pattern in ("**/*.md", "**/*.cc", "**/*.h", "**/*.py", "**/*.proto"):
        for path in sorted(glob.glob(pattern, recursive=True)):
            if not path.startswith("bazel-"):
                with open(path, encoding="utf-8", newline="") as f:
                    texts.append(f.read())
    return texts


def wrong_tokens(program, tokenizer, texts, theirs, work):
    """The texts with a differing token, whole or cut, and the number of tokens compared."""
    path = os.path.join(work, "texts")
    with open(path, "wb") as f:
        f.write(b"".join(text.encode() + b"\0" for text in texts))
    printed = subprocess.run(
        [program, tokenizer, path], check=True, stdout=subprocess.PIPE, text=True
    )
    lines = printed.stdout.splitlines()
    assert len(lines) == 2 * len(texts)
    wrong = tokens = 0
    for i, text in enumerate(texts):
        expected = theirs(text)
        tokens += len(expected)
        cuts = [[int(token) for token in lines[2 * i + cut].split()] for cut in (0, 1)]
        wrong += cuts != [expected, expected]
    return wrong, tokens


def check_read(kind, programs, corpus, texts, work):
    directory = os.path.join(work, f"read-{kind}")
    tokenizer = make_tokenizers.make(kind, corpus, 4000, directory)
    path = os.path.join(directory, "tokenizer.json")
    wrong, tokens = wrong_tokens(
        programs[3], path, texts, lambda t: tokenizer.encode(t, add_special_tokens=False).ids, work
    )
    report(f"{kind} tokenizer.json, {len(texts)} texts, {tokens} tokens, wrong texts", wrong, 0)

    exported = os.path.join(work, f"exported-{kind}")
    os.mkdir(exported)
    subprocess.run([programs[2], "file", path, exported], check=True)
    loaded = AutoTokenizer.from_pretrained(exported)
    some = make_tokenizers.TEXTS + texts[-200:]
    wrong = sum(loaded(t)["input_ids"] != tokenizer.encode(t).ids for t in some)
    report(f"{kind} exported, wrong texts", wrong, 0)


def check_sentencepiece(kind, programs, corpus, texts, work):
    directory = os.path.join(work, f"tokenizer-{kind}")
    os.mkdir(directory)
    path = os.path.join(work, "corpus")
    with open(path, "w", newline="") as f:
        f.write("".join(corpus))
    subprocess.run([programs[2], kind, path, directory], check=True)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    # SentencePiece encodes the texts of special tokens as characters.
    plain = [t for t in texts if not any(s in t for s in tokenizer.all_special_tokens)]
    model = os.path.join(directory, "tokenizer.model")
    wrong, tokens = wrong_tokens(
        programs[3], model, plain, lambda text: tokenizer(text)["input_ids"], work
    )
    wrong += tokenizer.eos_token_id != 2
    report(f"{kind} exported, {len(plain)} texts, {tokens} tokens, wrong texts", wrong, 0)


def dequantised(tensors, module):
    """The dequantised weights, by their definition: code · scale / global scale, in FP32."""
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
    # compressed-tensors returns BF16.
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
    assert distance(theirs, unquantised) > 1e-2, "quantisation does not change the logits"
    report(f"{name} quantised, logits", distance(theirs, their_logits(plain, tokens)), 1e-3)


def check_tokenizers(programs, work):
    assert importlib.util.find_spec("sentencepiece") is None, "exports must not need it"
    corpus = repository_texts()
    texts = make_tokenizers.TEXTS + corpus + every_character() + random_texts(5000)
    for kind in make_tokenizers.KINDS:
        check_read(kind, programs, corpus, texts, work)
    check_sentencepiece("bpe", programs, corpus, texts, work)
    # If segmentations have equal scores, the rounding of unigram's sums decides between them.
    check_sentencepiece("unigram", programs, corpus, make_tokenizers.TEXTS, work)


def main():
    programs, work = sys.argv[1:5], sys.argv[5]
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    for name in make_fixtures.CONFIGS:
        check_in(name, programs[0], os.path.join(work, "in"))
        check_out(name, "f32", programs, work)
        check_byte_tokenizer(name, check_out(name, "bf16", programs, work))
        if name != "gpt2":
            check_quantised(name, programs, work)
    check_tokenizers(programs, work)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
