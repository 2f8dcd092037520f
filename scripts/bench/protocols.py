#!/usr/bin/env python3
"""What a request costs the proxy over each protocol: microseconds of its CPU, many at once.

    ./scripts/serve & .venv/bin/python scripts/bench/protocols.py --pid PID --ca ca.pem [--url https://127.0.0.1:8443]

GET /v1/models: the wire and the application behind it, no node. The same client (libcurl) for all, `--at-once` requests
in flight over TLS: on as many connections over HTTP/1.1, on one over HTTP/2 and HTTP/3. The protocols in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

try:
    import pycurl
except ModuleNotFoundError:
    raise SystemExit("pycurl is missing: run ./scripts/install --dev") from None

VERSIONS = {"h1": pycurl.CURL_HTTP_VERSION_1_1, "h2": pycurl.CURL_HTTP_VERSION_2TLS, "h3": 31}
"""31: HTTP/3 and nothing else, which pycurl has no name for yet."""
TICKS = os.sysconf("SC_CLK_TCK")


class Load:
    """`at_once` requests in flight, each followed by the next, on connections that stay."""

    def __init__(self, version: int, url: str, ca: Path, key: str, at_once: int) -> None:
        self._multi = pycurl.CurlMulti()
        self._handles = [_request(version, url, ca, key) for _ in range(at_once)]

    def run(self, count: int) -> None:
        """Raises RuntimeError where one fails."""
        left = count
        for handle in self._handles:
            self._multi.add_handle(handle)
            left -= 1
        running = len(self._handles)
        while running:
            self._multi.perform()
            for handle in self._ended():
                self._multi.remove_handle(handle)
                running -= 1
                if left > 0:
                    self._multi.add_handle(handle)
                    left -= 1
                    running += 1
            self._multi.select(0.1)

    def _ended(self) -> Iterator[pycurl.Curl]:
        _, ended, failed = self._multi.info_read()
        if failed:
            raise RuntimeError(f"a request failed: {failed[0][2]}")
        for handle in ended:
            if handle.getinfo(pycurl.RESPONSE_CODE) != 200:
                raise RuntimeError(f"a request was answered {handle.getinfo(pycurl.RESPONSE_CODE)}")
            yield handle


def _request(version: int, url: str, ca: Path, key: str) -> pycurl.Curl:
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, url + "/v1/models")
    curl.setopt(pycurl.CAINFO, str(ca))
    curl.setopt(pycurl.HTTP_VERSION, version)
    curl.setopt(pycurl.PIPEWAIT, 1)
    curl.setopt(pycurl.HTTPHEADER, [f"authorization: Bearer {key}"])
    curl.setopt(pycurl.WRITEFUNCTION, lambda data: None)
    return curl


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", type=int, required=True, help="of the proxy")
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--url", default="https://127.0.0.1:8443")
    parser.add_argument("--key", default="none")
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--requests", type=int, default=2000, help="a round and protocol")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    loads = {name: Load(version, args.url, args.ca, args.key, args.at_once) for name, version in VERSIONS.items()}
    costs, rates = defaultdict(list), defaultdict(list)
    for load in loads.values():
        load.run(2 * args.at_once)
    for _ in range(args.rounds):
        for name, load in loads.items():
            before, start = cpu_s(args.pid), time.perf_counter()
            load.run(args.requests)
            costs[name].append((cpu_s(args.pid) - before) / args.requests * 1e6)
            rates[name].append(args.requests / (time.perf_counter() - start))
    print("| | CPU us per request | requests per s of its CPU | requests/s |\n|---|---|---|---|")
    for name, values in costs.items():
        cost = statistics.median(values)
        print(f"| {name} | {cost:.0f} | {1e6 / cost:.0f} | {statistics.median(rates[name]):.0f} |")


if __name__ == "__main__":
    main()
