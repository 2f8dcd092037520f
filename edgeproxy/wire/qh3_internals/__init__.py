"""QUIC connections of qh3 (2.1.x, a core in Rust), for the extra `[fast]`; all that touches private parts of it.

The library is aioquic's successor and not its drop-in: what is different is made alike here, so that HTTP/3, its limits
and its tests know nothing of it. The tests of this name fail where an update of the library moves what this stands on.

Memory: the core grants credit (RFC 9000 section 4.1) as events are taken out of it, and not as datagrams come. So none
are taken while too much waits for readers; what comes meanwhile is bounded by the windows that the core has granted.
Work: frames cannot be counted. A datagram of 1,150 PINGs costs the core 30 us, less than a request; what it hands out
and sends is counted, and CPU beyond what any honest datagram takes is charged as if it had been frames.
"""

from edgeproxy.wire.qh3_internals.quic import Quic

__all__ = ["Quic"]
