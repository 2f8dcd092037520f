"""What a step of the GPU executor computes, in Triton. This package imports triton alone, and nothing of the engine.

Of every kernel:

- A row's result depends on that row alone, bit for bit: tiles, and the order in which they are added up, are fixed by
  the model and by absolute positions, never by what else is in the launch.
- Every size is a constexpr, lies in device memory, or is an argument that does not change once the executor has warmed
  up: so that nothing is compiled from then on.
- Compiled without contraction into fused multiply-adds (engine/executor/gpu/launch.py): each operation rounds once.

With TRITON_INTERPRET=1 set before they are imported, the same functions run in numpy, on memory of the CPU.
"""
