"""The parts of the GPU executor (engine/executor/cuda.py): imports torch and triton, and nothing else imports it."""
