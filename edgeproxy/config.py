"""What regions.yaml says, as frozen dataclasses. Read by config_file.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

NodeKind = Literal["native", "vllm", "sglang", "llamacpp", "openai"]
Arithmetic = Literal["int16", "int8", "float32"]
KvDtype = Literal["f16", "int8", "fp8"]
Device = Literal["auto", "cpu", "cuda"]
GpuDtype = Literal["bf16", "f16"]
GpuWeights = Literal["kept", "dense"]
QuicLibrary = Literal["aioquic", "qh3"]
DEFAULT_MODEL = "smollm2-135m-instruct"


class ConfigError(ValueError):
    """A regions.yaml that cannot be used; the message names file, key and remedy."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listen:
    http: Address | None
    https: Address | None
    """TCP (h1, h2) and UDP (h3) on the same port number."""
    admin: Address | None


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path | None
    """PEM chain; None means a development certificate that the proxy makes itself."""
    key: Path | None


@dataclass(frozen=True, slots=True)
class Launch:
    """A native node that the proxy starts as its own child process. What stands beside the source are options of
    `engine serve`, in its words; None: its default."""

    source: str
    """Model URI: `package:distribution/file` or a path."""
    threads: int | None = None
    """None: one per core."""
    kv_tokens: int | None = None
    arithmetic: Arithmetic | None = None
    kv_dtype: KvDtype | None = None
    """int8 is the CPU's, fp8 a GPU's."""
    slots: int | None = None
    """Most sequences that run at the same time."""
    step_tokens: int | None = None
    """Most tokens of a step."""
    device: Device | None = None
    gpu_dtype: GpuDtype | None = None
    gpu_weights: GpuWeights | None = None
    quantum_ms: float | None = None
    max_wait_ms: float | None = None
    """Longest expected wait that it lets a request in with."""
    admission: str | None = None
    """`guarantee` or `optimistic`."""
    kv_store: str | None = None
    """Path of the file for KV that memory cannot hold; each node has its own."""
    kv_store_size: int | None = None
    """Bytes."""
    sleep_after: float | None = None
    """Seconds without a request, after which a node gives its memory back."""


@dataclass(frozen=True, slots=True)
class NodeTls:
    """Of connections to an https node. Files are PEM."""

    ca: Path | None = None
    """The only authorities believed; None: those of the system."""
    certificate: Path | None = None
    """What the proxy shows to a node that asks (mTLS), with `key`."""
    key: Path | None = None
    name: str | None = None
    """The name that the node's certificate must carry; None: the host of its URL."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    name: str
    """Unique in the file, e.g. `near-1`; appears in metrics."""
    kind: NodeKind
    url: str
    """Origin that the proxy connects to, e.g. `http://127.0.0.1:8101`. Never redirected."""
    models: tuple[str, ...]
    """Model ids; one that ends with `*` matches every id with that beginning (and is not listed in /v1/models)."""
    launch: Launch | None = None
    api_key_env: str | None = None
    """Environment variable that holds the node's bearer key; keys never stand in the file."""
    tls: NodeTls | None = None
    names: tuple[tuple[str, str], ...] = ()
    """(model id here, what the node calls it), for those that differ."""
    standby: bool = False
    """Serves only while no other node of the model is fit."""
    price_per_hour: float | None = None
    """In the operator's currency: its own, or its region's; None: not given."""

    continue_final_message: bool = False
    """It may go on with other nodes' streams from their text alone (vLLM, SGLang); the client is told."""

    def name_of(self, model: str) -> str:
        """What the node calls a model."""
        return next((theirs for ours, theirs in self.names if ours == model), model)


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """A userspace relay in front of a region, so that distance can be seen on one machine."""

    delay_ms: float
    """Added to the round trip; half of it in each direction."""


@dataclass(frozen=True, slots=True)
class RegionConfig:
    name: str
    nodes: tuple[NodeConfig, ...]
    relay: RelayConfig | None = None
    location: tuple[float, float] | None = None
    """Degrees north and east; for the map."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 512 * 2**20
    """Of all request bodies above 64 KiB together, to the end of their answers; one tenant (or address) has half."""
    hold_headers_s: float = 10.0
    """Response headers wait this long for the first content before 200 is sent with keep-alive comments."""
    attempts: int = 3
    first_byte_s: float = 120.0
    """A node that sent nothing for this long has failed."""
    stall_s: float = 60.0
    """A stream without an event for this long has failed."""
    resume_after_s: float = 10.0
    """A native node's stream without an event for this long goes on at another node, if one computes alike."""
    hedge_share: float = 0.0
    """Of streams, that may be sent to a second node too when their first token is late; 0: none."""


@dataclass(frozen=True, slots=True)
class Config:
    path: Path
    listen: Listen
    tls: Tls
    regions: tuple[RegionConfig, ...]
    keys: Path | None = None
    """File of hashed bearer keys; None: no authentication, loopback only."""
    hosts: tuple[str, ...] = ()
    """Names that clients may put in `Host` beside the loopback names and the bound addresses."""
    budget_ms: float = 150.0
    budgets: Mapping[str, float] = field(default_factory=dict)
    """Model id -> milliseconds, for models whose budget is another."""
    objective: float = 0.95
    """Share of the requests that is to have its first token within the budget; what burn rates are measured by."""
    quic: QuicLibrary = "aioquic"
    """What carries HTTP/3; qh3 comes with the extra `[fast]`."""
    traces_to: str | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP); None: no traces."""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Model id -> the model that answers where no node serves the first one now."""
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    @property
    def models(self) -> Mapping[str, tuple[str, ...]]:
        """Model id -> names of the nodes that serve it, in file order."""
        served: dict[str, tuple[str, ...]] = {}
        for region in self.regions:
            for node in region.nodes:
                for model in node.models:
                    served[model] = (*served.get(model, ()), node.name)
        return served
