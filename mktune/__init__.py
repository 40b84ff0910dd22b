"""mktune: finds the fastest correct way to run a small graph of LLM inference kernels on a GPU."""

__version__ = "0.1.0"
