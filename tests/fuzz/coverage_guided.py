"""The worker that lets atheris (libFuzzer) choose inputs: those that reach new code are mutated further."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris


def run(name: str, seed: int, seconds: float, current: Path) -> int:
    """Does not return: libFuzzer ends the process when the time is up."""
    # A module that is imported from here on records which of its branches an input takes.
    with atheris.instrument_imports(include=["opatlas"]):
        from .targets import target_named
    from .worker import Findings, limit_memory

    target = target_named(name)
    folder, corpus = (Path(tempfile.mkdtemp(dir=current.parent)) for _ in range(2))
    words = corpus.with_suffix(".dict")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if word))
    for number, data in enumerate(target.seeds()):
        (corpus / str(number)).write_bytes(data)
    findings = Findings(target, current, folder)
    limit_memory()
    arguments = [f"-seed={seed % (1 << 31) or 1}", f"-max_total_time={max(int(seconds), 1)}", f"-dict={words}"]
    # Hangs and memory are limited by the worker, as for other inputs.
    arguments += ["-max_len=65536", "-timeout=0", "-rss_limit_mb=0", "-verbosity=0", "-print_final_stats=0"]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], findings.run)
    atheris.Fuzz()
    return 0


def _escaped(word: bytes) -> str:
    return "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in word)
