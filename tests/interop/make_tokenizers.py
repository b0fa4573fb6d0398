"""Tokenizers of the supported kinds, trained and saved by Hugging Face's tokenizers, and its tokens
for texts on which such tokenizers are known to differ.

    python make_tokenizers.py OUT_DIRECTORY

Makes the fixtures of bpe_tokenizer_test: a directory of each kind, and cases.json: each case a text
and its tokens by kind. live_check.py trains the same kinds on more text. Equal versions give equal
bytes.
"""

import json
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
MARK = "\u2581"

TEXTS = [
    "", " ", "x", " x", "  x", "   ", "\n", "\n\n x", "x  \n  y\n\n", "\r\n\r\n x\r", "\t\t", "\tx",
    "the other thing, the one there", "don't DON'T we'vE I'm you'll WE'LL it's", "'", "''s", "s'",
    "a'S b'\u017f c'LL '\u017ft", "12345678 1234 1 \u00bd \u00b2 \u6f22\u5b57123",
    "a\u00a0b \u00a0 c\u3000\u3000d", "e\u0301 \u0928\u092e\u0938\u094d\u0924\u0947",
    "Stra\u00dfe \u6f22\u5b57 \u043a\u0438\u0440\u0438\u043b\u043b\u0438\u0446\u0430",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\u200b\u2028x\u0085y",
    "..!?\n\nx ...\r\n", MARK, MARK + " " + MARK + "x" + MARK, "a" + MARK + "b",
    "<|end|>hello<|end|> nibble nibbles xnibble", "a<|end|>", "</s> a</s>b </s>", "<s>", "<unk>x",
]  # fmt: skip


def syllables(words):
    """Words of up to three syllables, mixed with digits, emoji, other scripts and spaces."""
    parts = ["ta", "ren", "mo", "li", "sku", "ing", "the", "or", "vel", "ch", "ai", "um"]
    others = ["Stra\u00dfe", "\u6f22\u5b57", "1729", "  gap", "a\tb", "\U0001f600", "it's", "..."]
    state, out = 1, []
    for i in range(words):
        state = state * 48271 % (2**31 - 1)
        word = "".join(parts[state // 7**k % len(parts)] for k in range(1 + state % 3))
        out.append(others[state % 8] if state % 11 == 0 else word)
        out.append("\n" if i % 9 == 8 else " ")
    return "".join(out)


def of_bytes(texts, vocabulary, split, ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    before = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before + [level]) if before else level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=alphabet,
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("nibble", normalized=True)])
    return tokenizer


def of_pieces(texts, vocabulary, scheme):
    """SentencePiece-like pieces. scheme: "legacy" for Llama 2's normalizer, others for Metaspace."""
    words = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
        limit_alphabet=60,
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    parts = json.loads(words.to_str())
    parts["added_tokens"] = [t for t in parts["added_tokens"] if t["content"] in special]
    parts["model"]["fuse_unk"] = True
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    if scheme == "legacy":
        prepend = {"type": "Prepend", "prepend": MARK}
        parts["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
        parts["pre_tokenizer"] = None
    else:
        parts["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": MARK,
            "prepend_scheme": scheme,
            "split": False,
        }
    parts["decoder"] = decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}
    space = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoder["decoders"] = [space] + decoder["decoders"] + [{"type": "Fuse"}, strip]
    return Tokenizer.from_str(json.dumps(parts))


KINDS = {
    "gpt2": lambda texts, size: of_bytes(texts, size, None, False),
    "llama3": lambda texts, size: of_bytes(texts, size, LLAMA_3, True),
    "qwen2": lambda texts, size: of_bytes(texts, size, QWEN_2, False),
    "llama2": lambda texts, size: of_pieces(texts, size, "legacy"),
    "metaspace-first": lambda texts, size: of_pieces(texts, size, "first"),
    "metaspace-always": lambda texts, size: of_pieces(texts, size, "always"),
    "metaspace-never": lambda texts, size: of_pieces(texts, size, "never"),
}


def make(kind, texts, vocabulary, directory):
    tokenizer = KINDS[kind](texts, vocabulary)
    os.makedirs(directory, exist_ok=True)
    tokenizer.save(os.path.join(directory, "tokenizer.json"), pretty=False)
    end = "</s>" if tokenizer.token_to_id("</s>") is not None else "<|end|>"
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
        json.dump({"eos_token": end}, f)
        f.write("\n")
    return tokenizer


def main():
    texts = [syllables(3000)]
    cases = [{"text": text} for text in TEXTS + [syllables(60)]]
    for kind in KINDS:
        tokenizer = make(kind, texts, 400, os.path.join(sys.argv[1], kind))
        for case in cases:
            case[kind] = tokenizer.encode(case["text"], add_special_tokens=False).ids
    with open(os.path.join(sys.argv[1], "cases.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
