// What an inner product asks of the compiler. Sanitized code is many times as large, and unrolled it takes minutes to
// compile: there it is left as it stands.
#pragma once

#ifdef __SANITIZE_ADDRESS__
#define EDGE_INLINE inline
#define EDGE_UNROLL(times)
#else
#define EDGE_PRAGMA(text) _Pragma(#text)
#define EDGE_INLINE [[gnu::always_inline]] inline
#define EDGE_UNROLL(times) EDGE_PRAGMA(GCC unroll times)
#endif
