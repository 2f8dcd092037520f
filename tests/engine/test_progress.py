from __future__ import annotations

import io

from engine.progress import PackProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_anywhere_but_on_a_terminal_a_few_plain_lines() -> None:
    out = io.StringIO()
    with PackProgress(out) as progress:
        for done in range(1001):
            progress(done << 20, 1000 << 20)
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["0", "25", "50", "75", "100"]
    assert all(line.endswith("% of 1000 MiB") for line in lines)


def test_on_a_terminal_a_bar_that_is_gone_at_the_end() -> None:
    out = Terminal()
    with PackProgress(out) as progress:
        progress(1, 10)
        progress(10, 10)
    assert "packing" in out.getvalue()
    assert "\x1b[?25h" in out.getvalue(), "the cursor is shown again"


def test_a_bar_ends_with_its_block_where_the_work_failed() -> None:
    out = Terminal()
    with PackProgress(out) as progress:
        progress(1, 10)
    assert "\x1b[?25h" in out.getvalue()


def test_without_a_call_nothing_is_written() -> None:
    out = io.StringIO()
    with PackProgress(out):
        pass
    assert not out.getvalue()
