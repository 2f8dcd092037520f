"""The oracle itself against another implementation: transformers' llama, loaded from the same file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.executor.reference import ReferenceExecutor
from engine.model.arch import llama_config
from engine.model.gguf import Gguf
from engine.text.detokenize import Detokenizer
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.executor.driver import GREEDY, Driver, blocks_for
from tests.engine.executor.prompts import PROMPTS

TOLERANCE = 1e-3
"""Of logits that reach 30: float32 sums in another order."""
AMOUNT = 16


@pytest.fixture(scope="module")
def theirs(model_path: Path, gguf: Gguf) -> Any:
    """The model with transformers' own dequantisation, names and order of q and k (needs no `accelerate`)."""
    config = llama_config(gguf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab,
                hidden_size=config.hidden,
                intermediate_size=config.ffn,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                max_position_embeddings=config.context,
                rms_norm_eps=config.rms_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=True,
            )
        )
        loaded: Any = load_gguf_checkpoint
        tensors = loaded(model_path, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    assert set(model.state_dict()) - set(tensors) == {"lm_head.weight"}
    return model


def prompt_ids(tokenizer: Tokenizer, chat_template: ChatTemplate, prompt: str) -> list[int]:
    return tokenizer.encode(chat_template.render([{"role": "user", "content": prompt}]))


def test_the_golden_answer(reference: ReferenceExecutor, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    ids = prompt_ids(tokenizer, chat_template, PROMPTS[0])
    sampled = Driver(reference).generate(ids, 8, blocks=blocks_for(64))
    assert Detokenizer(tokenizer).push(sampled) == "The capital of France is Paris."
    assert sampled[-1] == tokenizer.eos_ids[-1]


@pytest.mark.parametrize("prompt", PROMPTS[::2])
def test_logits_and_greedy_tokens_are_transformers(
    reference: ReferenceExecutor, theirs: Any, tokenizer: Tokenizer, chat_template: ChatTemplate, prompt: str
) -> None:
    ids = prompt_ids(tokenizer, chat_template, prompt)
    drive = Driver(reference)
    sampled = drive.generate(ids, AMOUNT, blocks=blocks_for(len(ids) + AMOUNT), sampling=GREEDY)
    last = drive.logits()
    text = ids + sampled[:-1]
    with torch.inference_mode():
        logits = theirs(torch.tensor([text])).logits[0].numpy()

    assert sampled == logits[len(ids) - 1 :].argmax(-1).tolist()
    np.testing.assert_allclose(last, logits[-1], atol=TOLERANCE)
    np.testing.assert_allclose(reference.text_logits(text), logits, atol=TOLERANCE)
