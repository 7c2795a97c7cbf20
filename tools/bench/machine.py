"""What a run was measured on: processor, cores, memory, system, versions, load.

Out: a flat mapping for the report's header. Nothing here names a user, a host or a folder.
"""

import hashlib
import os
import platform

from runtime.bundle import Bundle
from runtime.kept_costs import name_processor
from runtime.manifest import MANIFEST_NAME
from runtime.providers import count_threads


def describe_machine() -> dict[str, str]:
    """Return the machine in words, by what each says."""
    found = {
        "processor": name_processor(),
        "cores": str(count_threads(None)),
        "memory": _read_memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        found["load before"] = f"{os.getloadavg()[0]:.2f}"
    return found


def describe_bundle(bundle: Bundle) -> dict[str, str]:
    """Return what was run: the models, their precision, and the manifest's hash."""
    manifest = bundle.manifest
    content = (bundle.folder / MANIFEST_NAME).read_bytes()
    models = {
        entry.name: f"{entry.source}, {entry.precision}"
        + (f", blocks of {entry.block_size}" if entry.block_size else "")
        for entry in manifest.models
    }
    return {**models, "manifest": f"sha256 {hashlib.sha256(content).hexdigest()}"}


def _read_memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"
