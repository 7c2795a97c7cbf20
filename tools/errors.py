"""Every error that the tools raise on purpose, as one branch of forerun's tree.

ForerunError                      (runtime.errors) its text is one clear sentence for the caller
└── ToolError                     a tool was asked for what it cannot do, or given a bad file
"""

from runtime.errors import ForerunError


class ToolError(ForerunError):
    """A tool cannot do what it was asked: the text names the file or the option, and why."""

    exit_code = 2
