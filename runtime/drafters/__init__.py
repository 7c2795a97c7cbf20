"""What proposes tokens: one small contract, one implementation a file."""

from .archive import Archive
from .base import Drafter, NoDrafter, Proposal
from .first_of import FirstOf
from .lookup import LookupDrafter
from .ngram import NgramDrafter
from .suffix import SuffixDrafter

__all__ = [
    "Archive",
    "Drafter",
    "FirstOf",
    "LookupDrafter",
    "NgramDrafter",
    "NoDrafter",
    "Proposal",
    "SuffixDrafter",
]
