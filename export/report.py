"""What an export or a change of a bundle made, for people and as JSON. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.manifest import Manifest, ModelEntry


@dataclass(frozen=True, kw_only=True)
class Report:
    """The bundle's manifest as it is now, what each stage took, and remarks."""

    output: Path
    manifest: Manifest
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()

    def model_bytes(self, entry: ModelEntry) -> int:
        """Return the size of one model's graph and weights."""
        return sum(f.bytes for f in self.manifest.files if f.path.startswith(f"{entry.name}/"))

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "bundle": str(self.output),
            "bytes": sum(file.bytes for file in self.manifest.files),
            "end_ids": list(self.manifest.end_ids),
            "models": [
                {
                    "name": model.name,
                    "source": model.source,
                    "architecture": model.architecture,
                    "precision": model.precision,
                    "parameters": model.parameters,
                    "context": model.context,
                    "logits": model.logits,
                    "bytes": self.model_bytes(model),
                    "parity": dict(model.parity),
                }
                for model in self.manifest.models
            ],
            "notes": list(self.notes),
            "seconds": {name: round(seconds, 2) for name, seconds in self.seconds.items()},
        }


def render_report(report: Report) -> str:
    """Return the summary for a person."""
    lines = [f"{report.output}: {_size(sum(f.bytes for f in report.manifest.files))}"]
    for model in report.manifest.models:
        lines += _model_lines(report, model)
    lines += [f"  note: {note}" for note in report.notes]
    lines.append(f"  {sum(report.seconds.values()):.0f} s in all")
    return "\n".join(lines)


def _model_lines(report: Report, model: ModelEntry) -> list[str]:
    parity = model.parity
    lines = [
        f"  {model.name}: {model.source}, {model.precision}, "
        f"{model.parameters / 1e6:.0f} M weights in {_size(report.model_bytes(model))}, "
        f"context {model.context}"
    ]
    if "kept_mass" in parity:
        lines.append(
            f"    its head is trimmed to {model.logits} tokens, to which the whole one gives "
            f"{100 * parity['kept_mass']:.1f} % of the probability"
        )
    if "max_error" in parity:
        lines.append(
            f"    float graph against PyTorch: largest error {parity['max_error']:.1e} of the "
            f"logits' range (limit {parity['tolerance']:.0e})"
        )
    if "mean_kl" in parity:
        lines.append(
            f"    {model.precision} against float: {parity['mean_kl']:.4f} nats per token, "
            f"same first choice {100 * parity['top1_agreement']:.1f} % "
            f"({parity['tokens']} tokens)"
        )
    if "block_error" in parity:
        exact = "to the last bit" if parity["block_error"] == 0 else "but for rounding"
        lines.append(
            f"    a block of tokens equals the same tokens fed singly {exact} "
            f"({parity['block_error']:.1e} of the range)"
        )
    return lines


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"
