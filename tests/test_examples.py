"""Configurations that the documents show can be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeproxy.cli import main
from edgeproxy.config_file import load

EXAMPLES = sorted((Path(__file__).parent.parent / "docs/examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes_check(path: Path) -> None:
    told = CliRunner().invoke(main, ["check", "--config", str(path)])
    assert told.exit_code == 0, told.output


def test_a_model_over_several_gpus_is_a_node_of_vllm() -> None:
    path = next(path for path in EXAMPLES if path.stem == "vllm")
    kinds = {node.kind for region in load(path).regions for node in region.nodes if "big" in node.models}
    assert kinds == {"vllm"}


def test_and_may_be_one_of_sglang(tmp_path: Path) -> None:
    text = next(path for path in EXAMPLES if path.stem == "vllm").read_text()
    (tmp_path / "sglang.yaml").write_text(text.replace("kind: vllm", "kind: sglang"))
    test_an_example_passes_check(tmp_path / "sglang.yaml")
