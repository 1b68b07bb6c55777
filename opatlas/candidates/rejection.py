"""The error of a candidate that a guard or a check of its results refuses."""

from __future__ import annotations

from opatlas.candidates.judgement import ErrorClass
from opatlas.model.errors import ReplayError


class CandidateRejected(ReplayError):
    """A candidate does not pass.

    Attributes:
        error_class: why.
        sub_class: the guard or the part of the class ("stale-result", "nan").
    """

    def __init__(self, error_class: ErrorClass, sub_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class
        self.sub_class = sub_class
