"""Train a small drafter for a target on text that the target writes itself.

Its modules, in the order of the data: `phrases` makes prompts and `source` deals them out; `writer`
lets the target answer them in batches (`writing`) or judge given text (`reading`), with its laws
(`laws`); `samples` is their file, `corpus` the folder. `drafter` builds the model from layers,
`losses` and `measure` judge it, `training` trains it, `forecast` says what it is worth, `record`
keeps what came of it. `__main__` is the command.
"""
