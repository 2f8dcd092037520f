"""One node as others see it: its state, its load and its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeproxy.protocol.node.report import NodeReport, NodeState
from edgeproxy.protocol.openai.errors import ApiError
from engine.chat import Chat
from engine.feed import BlockFeed
from engine.gauges import Gauges, Utilisation
from engine.loop import EngineLoop
from engine.stall import Stall
from engine.step import BLOCK_TOKENS

if TYPE_CHECKING:
    from engine.gpu.monitor import Monitor
    from engine.gpu.view import GpuView

STALL_S = 30.0
"""An engine that gets nothing done for longer has hung: the node is not alive, whatever else it answers."""


RETRY_MS = 1000
"""When to ask a node again that starts or ends; another one can be asked at once."""


class Node:
    """Answers from the first moment on; generates once `attach` gave it an engine and `ready` was called."""

    def __init__(self, model: str, stall_s: float = STALL_S) -> None:
        self.model = model
        self._stall_s = stall_s
        self._stall = Stall(stall_s / 2)
        self._state = NodeState.STARTING
        self._engine: EngineLoop | None = None
        self._chat: Chat | None = None
        self._monitor: Monitor | None = None

    def attach(self, engine: EngineLoop, chat: Chat, monitor: Monitor | None = None) -> None:
        """The model is in memory; the warm-up may begin. monitor: of the GPU that it is on, if it is."""
        self._engine, self._chat, self._monitor = engine, chat, monitor
        self._state = NodeState.WARMING

    def ready(self) -> None:
        """A real token came out."""
        self._state = NodeState.READY

    def drain(self) -> None:
        """No new requests; those that run go on."""
        self._state = NodeState.DRAINING
        if self._engine is not None:
            self._engine.feed.close()

    @property
    def state(self) -> NodeState:
        failed = self._engine is not None and self._engine.failure is not None
        return NodeState.FAILED if failed else self._state

    @property
    def why(self) -> str:
        """What an operator is to know of a node that is not ready, as the end of a sentence; mostly nothing."""
        fault = self._monitor.fault if self._monitor is not None else None
        return f", because of a fault of {fault}" if fault else ""

    @property
    def gpu(self) -> GpuView | None:
        """None on the CPU."""
        return self._monitor.view() if self._monitor is not None else None

    def check_alive(self) -> None:
        """Raises ApiError 503 unless steps go on, as far as there are any."""
        if self.state is NodeState.FAILED:
            raise ApiError(503, "This node's engine has failed; its log says why.", code="node_dead")
        if (stalled_s := self.stalled_s()) > self._stall_s:
            raise ApiError(503, f"This node hangs: it got nothing done for {stalled_s:.1f} s.", code="node_dead")

    def stalled_s(self) -> float:
        """How long the engine has got nothing done, as far as it could. To be asked again within half of `stall_s`."""
        engine = self._engine
        return 0.0 if engine is None else self._stall.look(engine.busy_since, engine.now())

    def chat(self) -> Chat:
        """Raises ApiError 503 unless the node is ready."""
        if self.state is not NodeState.READY or self._chat is None:
            raise ApiError(
                503,
                f"This node is {self.state}: try again shortly, or on another node.",
                code=f"node_{self.state}",
                headers=((b"retry-after-ms", b"%d" % RETRY_MS), (b"retry-after", b"1")),
                recovery={"retry_after_ms": RETRY_MS},
            )
        return self._chat

    @property
    def feed(self) -> BlockFeed:
        """Raises ApiError 503 before there is an engine."""
        if self._engine is None:
            raise ApiError(503, f"This node is {self.state}: it holds nothing yet.", code=f"node_{self.state}")
        return self._engine.feed

    @property
    def gauges(self) -> Gauges:
        return self._engine.gauges if self._engine is not None else Gauges()

    @property
    def cpu_use(self) -> float | None:
        """Of its compute threads' time in the last seconds, what they ran; None where that was never measured."""
        return self._engine.gauges.utilisation.use_lately(self._engine.now()) if self._engine is not None else None

    @property
    def numerics(self) -> str:
        return self._engine.numerics if self._engine is not None else ""

    def report(self, handling_s: float) -> NodeReport:
        engine = self._engine
        load = engine.load() if engine is not None else None
        return NodeReport(
            state=self.state,
            model=self.model,
            numerics=self.numerics,
            running=load.running if load else 0,
            waiting=load.waiting if load else 0,
            waiting_prefill_tokens=load.waiting_prefill_tokens if load else 0,
            kv_blocks_total=engine.limits.blocks if engine else 0,
            kv_blocks_free=load.blocks_free if load else 0,
            kv_blocks_evictable=load.blocks_evictable if load else 0,
            block_tokens=BLOCK_TOKENS,
            prefill_tokens_per_s=round(engine.gauges.prefill_tokens_per_s, 3) if engine else 0.0,
            step_ms=round(engine.gauges.step_ms, 3) if engine else 0.0,
            step_counter=load.step if load else 0,
            handling_s=round(handling_s, 7),
        )

    def status(self, handling_s: float) -> dict[str, Any]:
        """The report and what only operators and tests ask for."""
        engine = self._engine
        gauges = self.gauges
        gpu = self.gpu
        return {
            **self.report(handling_s)._asdict(),
            "aborts": gauges.aborts,
            "abort_steps_max": gauges.abort_steps_max,
            "sleeping": engine is not None and engine.sleeping,
            "stalled_s": round(self.stalled_s(), 3),
            "preemptions": gauges.preemptions,
            "kv_blocks_reused": gauges.blocks_reused,
            "kv_blocks_loaded": gauges.blocks_loaded,
            "kv_blocks_computed": gauges.blocks_computed,
            "kvr": round(gauges.kvr, 4),
            "prefilled_tokens": gauges.prefilled,
            "generated_tokens": gauges.generated,
            "forced_tokens": gauges.forced,
            "cpu_use": _rounded(self.cpu_use),
            **_utilisation(gauges.utilisation, gpu),
            "gpu": gpu.status() if gpu is not None else None,
            "ild_gap": gauges.gap.view(),
            "ild_wake": gauges.wake.view(),
        }


def _utilisation(found: Utilisation, gpu: GpuView | None) -> dict[str, Any]:
    return {
        "busy_s": round(found.busy_s, 3),
        "worker_s": [round(seconds, 3) for seconds in found.worker_s],
        "worker_busy": _rounded(found.worker_busy),
        "susi": _rounded(found.susi if gpu is None else gpu.susi),
        "page_faults": found.page_faults,
        "mpfr": _rounded(found.faults_per_token),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
