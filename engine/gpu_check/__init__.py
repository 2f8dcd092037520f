"""`scripts/gpu_check`: what only a GPU can show of the GPU executor. Needs torch, triton and numpy; downloads
nothing."""
