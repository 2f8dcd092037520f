#!/usr/bin/env python3
"""openvino-genai in process, straight from the GGUF: the cases of `engine bench`, printed as JSON.

Runs in an environment of its own (`pip install openvino-genai openvino-tokenizers`); `engines.py` calls it.

    python openvino_side.py MODEL.gguf --threads 2 --runs 5
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import openvino_genai as genai

DECODED = 32
WORDS = "time year people way day man thing life child world school state family group country hand part place".split()


class Side:
    def __init__(self, model: str, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = 16
        self._pipeline = genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._rng = random.Random(1)

    def prefill(self, tokens: int) -> float:
        found = self._generate([self._words(tokens)], 1)
        return found.get_num_input_tokens() / found.get_ttft().mean * 1e3

    def decode(self, streams: int, context: int = 62) -> float:
        """What the tokens after the first took: its own figure per token is of one stream only."""
        prompts = [self._words(context) for _ in range(streams)]
        began = time.perf_counter()
        self._generate(prompts, 1)
        first = time.perf_counter()
        self._generate([self._words(context) for _ in range(streams)], DECODED + 1)
        ended = time.perf_counter()
        return streams * DECODED / ((ended - first) - (first - began))

    def warm(self) -> float:
        """Prompt tokens per second to the first token of a prompt whose first 1792 tokens are cached."""
        start = self._words(1792)
        self._generate([start + self._words(20)], 1)
        found = self._generate([start + self._words(22)], 1)
        return found.get_num_input_tokens() / found.get_ttft().mean * 1e3

    def _words(self, tokens: int) -> str:
        """Each of these words is one token with the space before it."""
        return "".join(" " + self._rng.choice(WORDS) for _ in range(tokens))

    def _generate(self, prompts: list[str], tokens: int) -> genai.PerfMetrics:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        return self._pipeline.generate(prompts, config).perf_metrics


def cases(side: Side) -> Iterator[tuple[str, Callable[[], float]]]:
    yield "prefill 512", lambda: side.prefill(512)
    yield "prefill 1800", lambda: side.prefill(1800)
    yield "decode, 1 stream", lambda: side.decode(1)
    yield "decode, 8 streams", lambda: side.decode(8)
    yield "decode, 16 streams", lambda: side.decode(16)
    yield "decode at 1800", lambda: side.decode(1, 1800)
    yield "prompt, 1792 of 1814 in the pool", side.warm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    side = Side(options.model, options.threads)
    side.prefill(64)
    side.decode(16)
    results = []
    for name, case in cases(side):
        found = [case() for _ in range(options.runs)]
        results.append(
            {"name": name, "tokens_per_s": statistics.median(found), "least": min(found), "most": max(found)}
        )
    json.dump({"results": results}, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
