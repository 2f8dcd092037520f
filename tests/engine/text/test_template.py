from __future__ import annotations

import warnings
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from engine.model.gguf import Gguf, GgufError
from engine.text.template import MAX_OUTPUT_CHARS, MAX_TEMPLATE_CHARS, ChatTemplate

USER = {"role": "user", "content": "Hi"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [{"role": "developer", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye <b>&amp; 'é' 日本\n\n"}],
    [USER, {"role": "assistant", "content": ""}, {"role": "tool", "content": '{"t": 1}'}],
    [{"role": "user", "content": "{{ 7 * 7 }} {% raw %} <|im_end|>"}],
]

FEATURES = """
{%- set ns = namespace(found=false) %}
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% if message.role == 'tool' %}
        {% set ns.found = true %}
    {% endif %}
    {{ bos_token }}{{ message.role | upper }}: {{ message | tojson }} {{ message.content | trim | tojson(indent=2) }}
{% endfor %}
{{ ns.found }}{{ eos_token }}{% if add_generation_prompt %}go{% endif %}
"""


def theirs(template: str, messages: list[dict[str, Any]], prompt: bool) -> str:
    """As transformers renders it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered = render_jinja_template(
            conversations=[messages],
            chat_template=template,
            add_generation_prompt=prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
    return str(rendered[0][0])


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("prompt", [True, False])
def test_the_models_template_renders_as_transformers_renders_it(
    gguf: Gguf, chat_template: ChatTemplate, messages: list[dict[str, Any]], prompt: bool
) -> None:
    source = gguf.metadata["tokenizer.chat_template"]
    assert chat_template.render(messages, prompt) == theirs(source, messages, prompt)


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_templates_get_what_transformers_gives_them(messages: list[dict[str, Any]]) -> None:
    template = ChatTemplate(FEATURES, bos_token="<s>", eos_token="</s>")
    assert template.render(messages) == theirs(FEATURES, messages, True)


def test_a_default_system_message_comes_first(chat_template: ChatTemplate) -> None:
    assert chat_template.render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_bos_and_eos_are_the_files(gguf: Gguf) -> None:
    metadata = {**gguf.metadata, "tokenizer.chat_template": "{{ bos_token }} {{ eos_token }}"}
    assert ChatTemplate.from_gguf(replace(gguf, metadata=metadata)).render([]) == "<|im_start|> <|im_end|>"


def test_the_date_is_todays() -> None:
    days = {datetime.now().strftime("%d %b %Y") for _ in range(2)}
    rendered = ChatTemplate("{{ strftime_now('%d %b %Y') }}").render([USER])
    assert rendered in days | {datetime.now().strftime("%d %b %Y")}


def test_a_templates_own_message_is_the_error() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must alternate: ' + messages[0].role) }}")
    with pytest.raises(ValueError, match="Roles must alternate: user"):
        template.render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[9].content }}",
        "{{ messages + 1 }}",
        "{{ undefined_thing.x }}",
        "{{ 'a' | nosuchfilter if false }}{{ nosuch() }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ range(10 ** 9) | list }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'].open('/etc/passwd').read() }}",
        "{{ messages | tojson(indent=messages) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include 'x' %}",
    ],
)
def test_what_goes_wrong_inside_a_template_is_a_value_error(source: str) -> None:
    def attempt() -> str:
        return ChatTemplate(source).render([dict(USER)])

    with pytest.raises(ValueError, match="chat template"):
        attempt()


def test_messages_are_not_changed_by_a_template() -> None:
    messages = [dict(USER)]
    with pytest.raises(ValueError):
        ChatTemplate("{{ messages[0].pop('role') }}").render(messages)
    assert messages == [USER]


@pytest.mark.parametrize(
    "source", ["{% for x in %}", "{{", "{% endfor %}", "{{ 'a' | nosuchfilter }}", "{{" + "(" * 5000]
)
def test_a_broken_template_is_a_value_error(source: str) -> None:
    with pytest.raises(ValueError, match="cannot be compiled"):
        ChatTemplate(source)


def test_a_templates_size_and_output_are_bounded() -> None:
    with pytest.raises(ValueError, match="characters"):
        ChatTemplate("x" * (MAX_TEMPLATE_CHARS + 1))
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endfor %}"
    with pytest.raises(ValueError, match=f"more than {MAX_OUTPUT_CHARS} characters"):
        ChatTemplate(endless).render([USER])


def test_a_file_without_a_usable_template_is_refused(gguf: Gguf) -> None:
    for source, part in ((None, "there is no chat template"), ("{% if %}", "cannot be compiled")):
        broken = replace(gguf, metadata={**gguf.metadata, "tokenizer.chat_template": source})
        with pytest.raises(GgufError, match=part):
            ChatTemplate.from_gguf(broken)
