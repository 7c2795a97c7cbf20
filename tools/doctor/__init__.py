"""Would a draft make a target faster here? `python -m tools.doctor`."""
