from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeproxy.config import Config, ConfigError, Launch, Listen, NodeConfig, RegionConfig, RelayConfig, Tls
from edgeproxy.upstream import launch
from edgeproxy.upstream.launch import Child, Launcher
from tests.upstream.raw import OK, always, raw_server

READY = "print('up', flush=True); "


class Lines(logging.Handler):
    """What was logged, and a way to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())
        self._changed.set()

    async def line(self, part: str, count: int = 1) -> str:
        while len(found := [line for line in self.found if part in line]) < count:
            self._changed.clear()
            await self._changed.wait()
        return found[count - 1]


@pytest.fixture
def lines() -> Lines:
    return Lines()


def logger(lines: Lines) -> logging.Logger:
    made = logging.Logger("children")
    made.addHandler(lines)
    return made


def config(*regions: RegionConfig) -> Config:
    return Config(Path("regions.yaml"), Listen(None, None, None), Tls(None, None), regions)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def native(port: int, *models: str, **options: Any) -> NodeConfig:
    return NodeConfig(
        "near-1", "native", f"http://127.0.0.1:{port}", models or ("m",), Launch("package:a/b", **options)
    )


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


def launcher_of(
    lines: Lines, *programs: str, sleep: Callable[[float], Awaitable[None]] = no_wait, environment: str = "t"
) -> Launcher:
    made = Launcher(config(), environment, logger(lines), sleep=sleep)
    made.children = tuple(
        Child(f"child-{number}", (sys.executable, "-c", program)) for number, program in enumerate(programs)
    )
    return made


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def pid_of(line: str) -> int:
    return int(line.rpartition(" ")[2])


def ended(pid: int) -> bool:
    """Waits for a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


async def test_an_embedded_node_is_started_as_the_engine_wants_it(lines: Lines) -> None:
    port = free_port()
    node = native(port, threads=2, kv_tokens=4096, arithmetic="int8", kv_dtype="int8")
    launcher = Launcher(config(RegionConfig("near", (node,))), "t", logger(lines))
    (child,) = launcher.children
    assert child.name == "near-1"
    assert child.arguments[:4] == (sys.executable, "-m", "engine", "serve")
    assert " ".join(child.arguments[4:]) == (
        f"--model package:a/b --model-id m --host 127.0.0.1 --port {port} --exit-with-parent "
        "--threads 2 --kv-tokens 4096 --arithmetic int8 --kv-dtype int8"
    )
    assert launcher.origins == {}


async def test_what_launch_says_of_the_engine_reaches_it(lines: Lines) -> None:
    port = free_port()
    node = native(
        port, quantum_ms=5.0, max_wait_ms=9.0, admission="optimistic", kv_store="/var/kv", kv_store_size=1 << 30
    )
    (child,) = Launcher(config(RegionConfig("near", (node,))), "t", logger(lines)).children
    given = " ".join(child.arguments[4:]).partition("--exit-with-parent ")[2]
    assert given == (
        "--quantum-ms 5.0 --max-wait-ms 9.0 --admission optimistic --kv-store /var/kv --kv-store-size 1073741824"
    )


async def test_a_launched_node_may_be_one_on_a_gpu(lines: Lines) -> None:
    node = native(free_port(), device="cuda", slots=64, step_tokens=2048, kv_dtype="fp8", gpu_weights="dense")
    (child,) = Launcher(config(RegionConfig("near", (node,))), "t", logger(lines)).children
    given = " ".join(child.arguments[4:]).partition("--exit-with-parent ")[2]
    assert given == "--kv-dtype fp8 --slots 64 --step-tokens 2048 --device cuda --gpu-weights dense"


async def test_launched_nodes_send_their_traces_where_the_proxy_sends_its_own(lines: Lines) -> None:
    before = replace(config(RegionConfig("near", (native(free_port()),))), traces_to="http://127.0.0.1:4318/v1/traces")
    launcher = Launcher(before, "t", logger(lines))
    (child,) = launcher.children
    assert child.arguments[-2:] == ("--traces-to", "http://127.0.0.1:4318/v1/traces")
    after = launcher.plan(replace(before, traces_to=None))
    assert after.children == launcher.children, "the proxy itself changes that at its next start only"


async def test_a_port_in_use_is_named_with_its_remedy(lines: Lines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"regions\.yaml: node near-1: port {port} .* is in use; stop what"):
            Launcher(config(RegionConfig("near", (native(port),))), "t", logger(lines))


@pytest.mark.parametrize("models", [("a", "b"), ("a*",)])
async def test_a_launched_node_has_exactly_one_model(models: tuple[str, ...], lines: Lines) -> None:
    with pytest.raises(ConfigError, match="exactly one model id"):
        Launcher(config(RegionConfig("near", (native(free_port(), *models),))), "t", logger(lines))


async def test_output_is_logged_line_by_line_under_the_childs_name(lines: Lines) -> None:
    program = (
        "import sys; sys.stderr.write('bad\\n'); print('one\\rtwo\\n\\nthree'); print('x' * 100_000, 'end', flush=True)"
    )
    task = asyncio.create_task(launcher_of(lines, program + "; sys.stdin.read()").run())
    await lines.line("end")
    await stop(task)
    told = [line.removeprefix("child-0: ") for line in lines.found]
    assert [line for line in told if "x" not in line] == ["bad", "one", "two", "three"]
    assert "".join(line for line in told if "x" in line) == "x" * 100_000 + " end"
    assert max(map(len, told)) <= 2 * 8 * 1024


async def test_children_get_the_token_and_no_foreign_key(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_KEY", "sk-1")
    vendor = NodeConfig("v", "openai", "https://api.example.com", ("m",), api_key_env="VENDOR_KEY")
    launcher = Launcher(config(RegionConfig("far", (vendor,))), "secret", logger(lines))
    program = "import os; print('got', os.environ['EDGEPROXY_NODE_TOKEN'], os.environ.get('VENDOR_KEY'), flush=True)"
    launcher.children = (Child("child", (sys.executable, "-c", program + "; input()")),)
    task = asyncio.create_task(launcher.run())
    assert await lines.line("got") == "child: got secret None"
    await stop(task)


async def test_a_child_that_ends_is_started_again_after_a_growing_wait(lines: Lines) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await no_wait(seconds)

    task = asyncio.create_task(launcher_of(lines, "import sys; sys.exit(3)", sleep=sleep).run())
    assert "child-0 ended (exit status 3)" in await lines.line("ended", count=4)
    await stop(task)
    assert waits[:3] == [0.5, 1.0, 2.0]


async def test_a_child_that_fails_in_the_same_way_is_told_of_in_full_once(lines: Lines) -> None:
    task = asyncio.create_task(launcher_of(lines, "import sys; print('no such model'); sys.exit(3)").run())
    last = await lines.line("ended", count=3)
    await stop(task)
    assert "(exit status 3)" in last and "the same 3 times in a row" in last
    assert [line for line in lines.found if "model" in line] == ["child-0: no such model"]


async def test_a_killed_child_is_named_by_its_signal(lines: Lines) -> None:
    task = asyncio.create_task(launcher_of(lines, "import os; os.kill(os.getpid(), 9)").run())
    assert "signal SIGKILL" in await lines.line("ended")
    await stop(task)


async def test_a_program_that_does_not_exist_is_an_error_in_the_log(lines: Lines) -> None:
    launcher = launcher_of(lines)
    launcher.children = (Child("child", ("/nonexistent/engine",)),)
    task = asyncio.create_task(launcher.run())
    assert "could not be started" in await lines.line("ended")
    await stop(task)


async def test_stopping_asks_first(lines: Lines) -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: (print('bye', flush=True), sys.exit(0))); "
    task = asyncio.create_task(launcher_of(lines, program + READY + "signal.pause()").run())
    await lines.line("up")
    await stop(task)
    assert not any("ended" in line for line in lines.found)


async def test_a_child_that_does_not_listen_is_killed_with_what_it_started(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_S", 0.05)
    deaf = "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); "
    spawn = "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.signal(15, 1); signal.pause()']); "
    task = asyncio.create_task(launcher_of(lines, deaf + spawn + "print('pid', p.pid, flush=True); p.wait()").run())
    pid = pid_of(await lines.line("pid"))
    await stop(task)
    assert await asyncio.to_thread(ended, pid)


async def test_a_region_behind_a_relay_is_reached_through_it(lines: Lines) -> None:
    async with raw_server(always(OK)) as server:
        node = NodeConfig("far-1", "openai", f"http://127.0.0.1:{server.port}", ("m",))
        launcher = Launcher(config(RegionConfig("far", (node,), RelayConfig(2.0))), "t", logger(lines))
        task = asyncio.create_task(launcher.run())
        origin = launcher.origins["far-1"]
        assert origin.port != server.port
        reader, writer = await asyncio.open_connection(origin.host, origin.port)  # waits in the listener we hold
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.readexactly(len(OK)) == OK
        writer.close()
        await writer.wait_closed()
        await stop(task)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(origin.host, origin.port)


def test_a_killed_proxy_takes_its_children_along() -> None:
    parent = """
import asyncio, logging, sys
from pathlib import Path
from typing import Any
from edgeproxy.config import *
from edgeproxy.upstream.launch import Launcher
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
node = NodeConfig("far-1", "openai", "http://127.0.0.1:1", ("m",))
config = Config(Path("r"), Listen(None, None, None), Tls(None, None), (RegionConfig("far", (node,), RelayConfig(1.0)),))
asyncio.run(Launcher(config, "t", logging.getLogger()).run())
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "relaying port" in process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.read()  # ends when the last holder of the pipe has: only the proxy itself
    assert ended(int(children[0])), "the relay outlived its proxy"
