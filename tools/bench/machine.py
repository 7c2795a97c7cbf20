"""What a run was measured on: processor, cores, memory, system, versions, load.

Out: a flat mapping for the report's header. Nothing here names a user, a host or a folder.
"""

import hashlib
import os
import platform
from pathlib import Path

from runtime.bundle import Bundle
from runtime.manifest import MANIFEST_NAME
from runtime.providers import count_threads


def describe_machine() -> dict[str, str]:
    """Return the machine in words, by what each says."""
    found = {
        "processor": _read_processor(),
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


def _read_processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _read_memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"
