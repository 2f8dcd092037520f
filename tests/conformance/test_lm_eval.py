"""lm-eval's `local-completions` scores a model alike with the proxy and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.model.gguf import read
from engine.model.source import resolve
from engine.text.tokenizer import Tokenizer
from tests.e2e.deployment import MODEL, NODE_TOKEN, SOURCE, Deployment

lm_eval = pytest.importorskip("lm_eval", reason="not installed: scripts/conformance installs and runs it")
pytest.importorskip("datasets", reason="not installed: scripts/conformance installs and runs it")
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]
FACTS = [
    ("The capital of France is", [" Paris", " Rome", " Berlin"], 0),
    ("The capital of Italy is", [" Paris", " Rome", " Berlin"], 1),
    ("The capital of Germany is", [" Paris", " Rome", " Berlin"], 2),
    ("Two and two make", [" four", " nine", " green"], 0),
    ("The sun rises in the", [" cellar", " east", " spoon"], 1),
    ("Water is made of hydrogen and", [" oxygen", " bread", " sand"], 0),
]


def task(folder: Path) -> dict[str, Any]:
    data = folder / "facts.jsonl"
    rows = [{"text": text, "choices": choices, "gold": gold} for text, choices, gold in FACTS]
    data.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return {
        "task": "facts",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }


def scores(base: str, folder: Path) -> Any:
    """What is scored of each: log-likelihoods and whether greedy decoding gives the very choice."""
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": MODEL,
            "base_url": f"{base}/v1/completions",
            "tokenizer": str(folder),
            "tokenizer_backend": "huggingface",
            "tokenized_requests": True,
            "max_length": 2048,
            "num_concurrent": 1,
            "header": {"authorization": f"Bearer {NODE_TOKEN}"},
        },
        tasks=[task(folder)],
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    return found["results"]["facts"], [sample["filtered_resps"] for sample in found["samples"]["facts"]]


def save_tokenizer(folder: Path) -> None:
    """The model's own, in the form that lm-eval loads."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_gguf(read(resolve(SOURCE)))
    tokenizer.prepare()
    assert tokenizer._whole is not None
    end = tokenizer.control_names[0]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer._whole, bos_token=end, eos_token=end).save_pretrained(folder)


def test_scores_are_those_of_the_node(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    save_tokenizer(tmp_path)
    through = scores(f"http://127.0.0.1:{deployment.http}", tmp_path)
    direct = scores(f"http://127.0.0.1:{deployment.near}", tmp_path)
    assert through == direct
    assert through[0]["acc,none"] > 0.5
