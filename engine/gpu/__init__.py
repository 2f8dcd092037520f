"""What a node knows of its GPU beside computing on it: NVML through nvidia-ml-py (extra [gpu]), loaded only here."""
