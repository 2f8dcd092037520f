from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.gguf import Gguf
from engine.text.jinja import JinjaTemplate
from engine.text.plain_template import Unsure, compiled
from engine.text.template import ChatTemplate

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " {{ x }} \n"}]
GIVEN = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}


def plainly(source: str, given: dict[str, Any]) -> str:
    render = compiled(source)
    assert render is not None
    return "".join(render(given))


def by_jinja(source: str, given: dict[str, Any]) -> str:
    return "".join(JinjaTemplate(source).render(given))


def test_the_models_own_template_is_plain(gguf: Gguf) -> None:
    assert compiled(gguf.metadata["tokenizer.chat_template"]) is not None


NAMES = st.sampled_from(["bos_token", "eos_token", "add_generation_prompt", "messages", "m", "n", "loop", "nobody"])
LITERALS = st.sampled_from(
    ["'a'", '"b"', "''", "'\\n'", "'it\\'s'", '"\\\\"', "'two\nlines'", "'é 日'", "'user'", "'system'"]
)
MEMBERS = st.sampled_from(
    [
        "['role']",
        "['content']",
        "[0]",
        "[1]",
        "[9]",
        ".role",
        ".first",
        ".last",
        ".index",
        ".length",
        ".items",
        "['no']",
    ]
)
ATOMS = st.one_of(
    LITERALS, NAMES, st.builds("{}{}".format, NAMES, MEMBERS), st.builds("messages{}{}".format, MEMBERS, MEMBERS)
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from(["+", "==", "!=", "and", "or"]), inner),
        st.builds("not {}".format, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=4,
)
OPEN, CLOSE = st.sampled_from(["", "-"]), st.sampled_from(["", "-"])
TEXTS = st.text(st.sampled_from("ab \n\t}%"), max_size=5)
OUTPUTS = st.builds("{{{{{} {} {}}}}}".format, OPEN, EXPRESSIONS, CLOSE)
BODIES = st.recursive(
    st.one_of(TEXTS, OUTPUTS),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{{%{0} if {2} {1}%}}{3}{{% endif %}}".format, OPEN, CLOSE, EXPRESSIONS, inner),
        st.builds(
            "{{% if {0} %}}{2}{{%- elif {1} %}}{3}{{% else -%}}{2}{{% endif %}}".format,
            EXPRESSIONS,
            EXPRESSIONS,
            inner,
            inner,
        ),
        st.builds(
            "{{%{0} for {2} in messages {1}%}}{3}{{% endfor %}}".format, OPEN, CLOSE, st.sampled_from(["m", "n"]), inner
        ),
    ),
    max_leaves=6,
)


@given(st.one_of(BODIES, st.builds("{{% for m in messages %}}{}{{% endfor %}}".format, BODIES)))
def test_what_is_rendered_is_what_jinja2_renders(source: str) -> None:
    """Or it is left to jinja2: with the template, or with these messages."""
    render = compiled(source)
    if render is None:
        return
    try:
        found = "".join(render(GIVEN))
    except Unsure:
        return
    assert found == by_jinja(source, GIVEN)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if not loop.first %}, {% endif %}{{ m.role }}={{ m['content'] }}{% endfor %}\n\n",
        "a\n{% if add_generation_prompt %}\n b {{- bos_token -}} \n{% elif messages %}x{% else %}y{% endif -%}\n c",
        "{% for m in messages %}{% for n in messages %}{% if loop.last and m == n %}{{ n.role + '!' }}{% endif %}"
        "{% endfor %}{% if loop.first %}{{ '\\n' }}{% endif %}{% endfor %}",
        "{% if (messages[0]['role'] == 'system' or nobody) and messages[1].role != 'x' %}{{ '}' + \"'\" }}{% endif %}",
    ],
)
def test_plain_templates_are_rendered_without_jinja2(source: str) -> None:
    assert plainly(source, GIVEN) == by_jinja(source, GIVEN)


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = 1 %}",
        "{{ messages | length }}",
        "{{ raise_exception('no') }}",
        "{{ 'a' 'b' }}",
        "{{ 'a' if messages else 'b' }}",
        "{% for m in messages if m %}{% endfor %}",
        "{% for m in messages %}",
        "{% endif %}",
        "{% if messages %}{% endfor %}",
        "{# a comment #}",
        "{% raw %}{{ x }}{% endraw %}",
        "  {% if messages %}{% endif %}",
        "{{ messages[-1] }}",
        "{{ messages[1:] }}",
        "{{ 'a' ~ 'b' }}",
        "{{ true }}",
        "{{ 'a\\x41' }}",
        "{{ }}",
        "{{",
        "a\r\nb",
        "{{ m.__class__ }}",
        "{{" + "(" * 5000,
    ],
)
def test_all_else_is_left_to_jinja2(source: str) -> None:
    assert compiled(source) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[0]['name'] }}", {"role": "user"}),
        ("{{ messages[0].items }}", {"role": "user", "items": "x"}),
        ("{{ messages[0].content }}", {"role": "user", "content": 7}),
        ("{{ messages[0].content + '!' }}", {"role": "user", "content": None}),
        ("{% for m in messages[0].content %}{{ m }}{% endfor %}", {"content": "text"}),
        ("{{ nobody }}", {}),
        ("{% for m in messages %}{{ loop.index }}{% endfor %}", {}),
    ],
)
def test_values_that_are_not_as_plain_are_left_to_jinja2(source: str, message: dict[str, Any]) -> None:
    with pytest.raises(Unsure):
        plainly(source, {"messages": [message]})
    template = ChatTemplate(source)
    try:
        expected = by_jinja(source, {"messages": [message], "add_generation_prompt": True})
    except (TypeError, ValueError):
        with pytest.raises(ValueError, match="refused"):
            template.render([message])
    else:
        assert template.render([message]) == expected
