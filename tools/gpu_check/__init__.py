"""One script that says what a machine with a GPU does with forerun: `python -m tools.gpu_check`."""
