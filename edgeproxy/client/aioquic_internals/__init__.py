"""Everything in the project that touches private parts of aioquic (1.7.x), for server and client alike.

aioquic grants receive credit whether or not anyone reads, buffers a field section of any length, tells nobody what is
still unsent, works on any number of frames that its peer likes to send, and knows no stateless reset when it sees one.
What is missing is added here, and only here; the tests of this name fail where an update of the library moves what this
package stands on.
"""

from edgeproxy.client.aioquic_internals.h3 import H3, ExcessiveLoad, MessageRefused
from edgeproxy.client.aioquic_internals.quic import Quic, refusal_datagram

__all__ = ["H3", "ExcessiveLoad", "MessageRefused", "Quic", "refusal_datagram"]
