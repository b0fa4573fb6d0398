"""Compares Nibble with four other packages, each running its own code:

  llm-compressor      the codes and block scales of a model's weights in NVFP4   (parity_weights.py)
  compressed-tensors  the logits of a packed export                              (parity_weights.py)
  lm-eval             the figures of `nibble eval`, for text and for multiple-choice questions
  megatron-core       files of its IndexedDatasetBuilder: `nibble data` reads the same tokens and
                      refuses damaged files

    python parity_check.py NIBBLE HF_LOGITS EXPORT_RANDOM WORK_DIRECTORY

The second and third argument are the programs of the *_main.cc files. Run it from the repository's
root: the licence there is the evaluated text. Each comparison is repeated on a damaged copy, which
must differ. Prints a line per check and, at the end, the table of README.md; exits with 1 if a check
fails.
"""

import json
import os
import random
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = os.path.join(sys.argv[-1], "caches")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["LLM_COMPRESSOR_LOG_DISABLED"] = "true"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TQDM_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import lm_eval  # noqa: E402
import numpy as np  # noqa: E402
import parity_table  # noqa: E402
import parity_weights  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402
from parity_table import Row, check, nibble  # noqa: E402

# Of log-likelihoods, in nats per token: the log-sum-exp of the logits of live_check.py.
LOSS_TOLERANCE = 1e-5
DOCUMENT_END = 256  # of the byte tokenizer
# The tokens of a window, and the most tokens of context and choice: gpt2 has 40 positions.
MODELS = {"nemotron_h": (128, 512), "llama": (128, 512), "arcee": (128, 512), "gpt2": (32, 40)}
WINDOWS = 8  # of each text


# lm-eval


def texts_of(sequence):
    """Texts of complete windows: Nibble omits a shorter last window, and lm-eval gives it more
    context than others. Bytes are tokens, and the licence is ASCII."""
    with open("LICENSE", encoding="ascii") as f:
        text = f.read()
    size = WINDOWS * sequence
    return [text[i * size : (i + 1) * size] for i in range(3)]


def questions_of(count, longest):
    """The words that follow a context in the licence, among others; some contexts end with spaces or
    are empty, and choices differ in length and have multi-byte characters."""
    draw = random.Random(5)
    with open("LICENSE", encoding="ascii") as f:
        words = f.read().split()
    questions = []
    while len(questions) < count:
        at = draw.randrange(12, len(words) - 12)
        others = [draw.randrange(len(words) - 6) for _ in range(3)]
        choices = [" ".join(words[b : b + draw.randint(1, 4)]) for b in (at, *others)]
        choices[1] += draw.choice(["", "\u00e9\u00e9", "\u6f22\u5b57"])
        gold = draw.randrange(4)
        choices[0], choices[gold] = choices[gold], choices[0]
        i = len(questions)
        context = "" if i == 0 else " ".join(words[at - draw.randint(1, 10) : at]) + " " * (i % 3)
        # One more space separates the choice.
        if max(len(f"{context} {choice}".encode()) for choice in choices) < longest:
            questions.append({"context": context, "choices": choices, "gold": gold})
    return questions


def write_lines(path, objects):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(one) + "\n" for one in objects)
    return {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": path}}}


def their_evaluation(directory, longest, task, lines, path):
    """The model's scores of each line, and the figures."""
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    task |= {"task": "parity", "test_split": "test", "dataset_path": "json"}
    task |= {"dataset_kwargs": {"data_files": {"test": path}}}
    model = HFLM(
        pretrained=directory,
        dtype="float32",
        device="cpu",
        max_length=longest,
        batch_size=4,
        attn_implementation="eager",
    )
    found = lm_eval.simple_evaluate(
        model=model, tasks=[task], bootstrap_iters=0, verbosity="ERROR", log_samples=True
    )
    samples = sorted(found["samples"]["parity"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(lines)
    return [sample["filtered_resps"] for sample in samples], found["results"]["parity"]


def our_evaluation(program, directory, *arguments):
    options = ["--precision", "fp32", "--threads", "1", "-o", "json"]
    return json.loads(nibble(program, "eval", "--from", directory, *arguments, *options))


def our_losses(program, directory, sequence, texts, work):
    """Nats per token of each text, after an end of document as in lm-eval."""
    paths = []
    for i, text in enumerate(texts):
        paths.append(os.path.join(work, f"text-{i}.bin"))
        np.array([DOCUMENT_END, *text.encode()], np.uint16).tofile(paths[-1])
    found = our_evaluation(
        program,
        directory,
        *("--data", ",".join(paths), "--token-width", "2", "--sequence", str(sequence)),
    )
    assert [one["tokens"] for one in found["data"]] == [len(text) for text in texts]
    return [one["loss"] for one in found["data"]]


def check_texts(name, program, directory, sequence, work):
    texts = texts_of(sequence)
    task = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"}
    task |= {"metric_list": [{"metric": "byte_perplexity"}]}
    lines = [{"text": text} for text in texts]
    path = os.path.join(work, "texts.jsonl")
    scores, figures = their_evaluation(directory, sequence, task, lines, path)
    theirs = [-float(np.ravel(score)[0]) / len(text) for score, text in zip(scores, texts)]
    ours = our_losses(program, directory, sequence, texts, work)
    apart = max(abs(a - b) for a, b in zip(theirs, ours))
    check(
        f"{name}, {len(texts)} texts",
        apart <= LOSS_TOLERANCE,
        f"byte perplexity {figures['byte_perplexity,none']:.5f}, here {np.exp(np.mean(ours)):.5f}; "
        f"at most {apart:.1e} nats per token apart",
    )
    other = our_losses(program, directory, sequence, [texts[0][:-1] + "\x7f"], work)
    damage = abs(theirs[0] - other[0])
    check(f"{name}, one changed byte is detected", damage > LOSS_TOLERANCE, f"{damage:.1e}")
    return apart, sum(map(len, texts))


def check_questions(name, program, directory, longest, work):
    questions = questions_of(24, longest)
    task = {"output_type": "multiple_choice", "doc_to_text": "{{context}}"}
    task |= {"doc_to_choice": "choices", "doc_to_target": "gold"}
    # acc_norm is per character in lm-eval and per byte in Nibble.
    task |= {"metric_list": [{"metric": metric} for metric in ("acc", "acc_bytes")]}
    path = os.path.join(work, "questions.jsonl")
    scores, figures = their_evaluation(directory, longest, task, questions, path)
    ours = our_evaluation(program, directory, "--choices", path, "--answers")
    apart = max(
        abs(float(theirs[0]) - here) / (len(choice.encode()) + 1)
        for question, score, answer in zip(questions, scores, ours["answers"], strict=True)
        for choice, theirs, here in zip(question["choices"], score, answer["log_likelihoods"])
    )
    figures = figures["acc,none"], figures["acc_bytes,none"]
    check(
        f"{name}, {len(questions)} questions",
        apart <= LOSS_TOLERANCE and figures == (ours["acc"], ours["acc_norm"]),
        f"acc {figures[0]:.4f}, here {ours['acc']:.4f}; acc_bytes {figures[1]:.4f}, here acc_norm "
        f"{ours['acc_norm']:.4f}; at most {apart:.1e} nats per token apart",
    )
    return apart, sum(len(question["choices"]) for question in questions)


def check_lm_eval(programs, work):
    row, worst, tokens, choices = Row(), 0.0, 0, 0
    for name, (sequence, longest) in MODELS.items():
        here = os.path.join(work, f"eval-{name}")
        os.makedirs(here)
        directory = os.path.join(here, "model")
        nibble(programs[2], name, "5", directory, "f32")
        for checked, length in ((check_texts, sequence), (check_questions, longest)):
            apart, count = checked(name, programs[0], directory, length, here)
            worst = max(worst, apart)
            tokens += count if checked is check_texts else 0
            choices += count if checked is check_questions else 0
    amount = f"{len(MODELS)} models, {tokens} tokens of text, {choices} choices"
    result = f"at most {worst:.1e} nats per token apart; acc and acc_bytes equal"
    row.end("perplexity and accuracy of exports", ("lm_eval", "transformers"), amount, result)


# megatron-core


def built(prefix, dtype, documents):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for i, sequences in enumerate(documents):
        if i % 2:
            whole = torch.from_numpy(np.concatenate(sequences).astype(np.int64))
            builder.add_document(whole, [len(s) for s in sequences])
        else:
            for sequence in sequences:
                builder.add_item(torch.from_numpy(sequence.astype(np.int64)))
            builder.end_document()
    builder.finalize(prefix + ".idx")


def read_documents(program, index, vocabulary):
    options = ["--documents", "1000000", "--max-tokens", "1000000000", "-o", "json"]
    options += ["--vocabulary", str(vocabulary)]
    found = json.loads(nibble(program, "data", "inspect", index, *options))
    return [document["first_tokens"] for document in found["shown"]]


def check_refused(what, program, verb, index, vocabulary):
    try:
        nibble(program, "data", verb, index, "--vocabulary", str(vocabulary))
    except RuntimeError as error:
        check(f"{what} is refused", os.path.basename(index)[:-4] in str(error), error)
    else:
        check(f"{what} is refused", False, "it was read")


def check_damaged(kind, program, prefix, dtype, vocabulary):
    """Every kind of detectable damage; index and tokens have no checksums."""
    parts = {}
    for ending in (".idx", ".bin"):
        with open(prefix + ending, "rb") as f:
            parts[ending] = f.read()

    def with_bytes(data, at, new):
        return data[:at] + new + data[at + len(new) :]

    index, tokens = parts[".idx"], parts[".bin"]
    count = int.from_bytes(index[18:26], "little")
    cases = {
        "a cut index": {".idx": index[:-1]},
        "a longer index": {".idx": index + b"\0"},
        "cut tokens": {".bin": tokens[:-1]},
        "longer tokens": {".bin": tokens + tokens[:8]},
        "another magic": {".idx": with_bytes(index, 0, b"X")},
        "another version": {".idx": with_bytes(index, 9, b"\2")},
        "another type": {".idx": with_bytes(index, 17, b"\5")},
        "a longer sequence": {".idx": with_bytes(index, 34, b"\xff\xff")},
        "another pointer": {".idx": with_bytes(index, 34 + 4 * count + 8, b"\xff")},
        "another document": {".idx": with_bytes(index, 34 + 12 * count + 8, b"\xff\xff")},
        "a token too large": {".bin": with_bytes(tokens, 0, dtype(vocabulary).tobytes())},
    }
    for i, (what, changed) in enumerate(cases.items()):
        damaged = f"{prefix}-damaged-{i}"
        for ending, data in (parts | changed).items():
            with open(damaged + ending, "wb") as f:
                f.write(data)
        check_refused(f"{kind}, {what}", program, "verify", damaged + ".idx", vocabulary)
    return len(cases)


def check_megatron(program, work):
    row, documents, tokens, damages = Row(), 0, 0, 0
    for kind, dtype, vocabulary in (("uint16", np.uint16, 50257), ("int32", np.int32, 131072)):
        draw = np.random.default_rng(3)
        made = []
        for _ in range(60):
            lengths = draw.integers(1, 400, draw.integers(1, 5))
            made.append([draw.integers(0, vocabulary, length) for length in lengths])
        prefix = os.path.join(work, f"megatron-{kind}")
        built(prefix, dtype, made)
        expected = [np.concatenate(document).tolist() for document in made]
        size = sum(map(len, expected))
        same = read_documents(program, prefix + ".idx", vocabulary) == expected
        check(f"{kind}, {len(expected)} documents, {size} tokens read alike", same)
        nibble(program, "data", "verify", prefix + ".idx", "--vocabulary", str(vocabulary))
        damages += check_damaged(kind, program, prefix, dtype, vocabulary)
        with open(prefix + ".bin", "r+b") as f:
            f.seek(size // 2 * np.dtype(dtype).itemsize)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        same = read_documents(program, prefix + ".idx", vocabulary) == expected
        check(f"{kind}, a flipped bit of a token is detected", not same)
        documents, tokens = documents + len(expected), tokens + size
    amount = f"{documents} documents, {tokens} tokens, uint16 and int32; {damages} damaged copies"
    row.end("Megatron .bin/.idx", ("megatron-core",), amount, "same tokens; damage refused")


def main():
    programs, work = sys.argv[1:4], sys.argv[4]
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for dtype in (torch.float32, torch.bfloat16):
        parity_weights.check_llm_compressor(programs[0], work, dtype)
    parity_weights.check_compressed_tensors(programs, work)
    check_lm_eval(programs, work)
    check_megatron(programs[0], work)
    parity_table.print_table()
    sys.exit(1 if parity_table.failed else 0)


if __name__ == "__main__":
    main()
