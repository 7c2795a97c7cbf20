"""What proposes tokens: one small contract, one implementation a file."""

from .base import Drafter, NoDrafter, Proposal
from .lookup import LookupDrafter
from .suffix import SuffixDrafter

__all__ = ["Drafter", "LookupDrafter", "NoDrafter", "Proposal", "SuffixDrafter"]
