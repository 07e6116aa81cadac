"""labkit: what GPU memory really does in LLM serving, as code that can be run, changed and measured.

Importing this package imports neither torch nor matplotlib: sizes, allocators, schedulers and the simulator need
only NumPy. The rooms and who may import whom are drawn in docs/architecture.md.
"""

__version__ = "0.1.0"
