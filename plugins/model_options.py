"""The options of a session in which models write the candidates (--models), and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opatlas.generation.settings import KernelLanguage, LoopLimits
from opatlas.options import Scope, at_least, declare, names, real

#: The folder of attempts and candidates in the database of tasks; a folder for each language lies in it.
GENERATED = "generated"
#: The folder of recorded answers beside the attempts, without --answers.
ANSWERS = "answers"

OPTIONS = (
    declare(
        "--models",
        Scope.KERNELS,
        type=names,
        metavar="NAME[,NAME...]",
        default=(),
        help="models that write the candidates for --tasks, each measured as an implementation of its name "
        "(default: none)",
    ),
    declare(
        "--endpoint",
        Scope.KERNELS,
        metavar="URL",
        default="",
        help="address of a server that takes OpenAI's chat completions (default: none; recorded answers alone)",
    ),
    declare(
        "--api-key-variable",
        Scope.KERNELS,
        metavar="NAME",
        default="",
        help="name of the environment variable with the key of --endpoint (default: no key is sent)",
    ),
    declare(
        "--answers",
        Scope.KERNELS,
        type=Path,
        metavar="DIR",
        help="folder of recorded answers: a request that is recorded is not sent, and an answer of --endpoint is "
        f"recorded (default: {GENERATED}/LANGUAGE/{ANSWERS} in the folder of the database)",
    ),
    declare(
        "--attempts",
        Scope.KERNELS,
        type=at_least(1),
        metavar="N",
        default=LoopLimits.attempts,
        help="the most attempts of a model at a task, the first answer included (default: %(default)s)",
    ),
    declare(
        "--max-tokens",
        Scope.KERNELS,
        type=at_least(1),
        metavar="N",
        default=LoopLimits.max_tokens,
        help="the largest number of tokens of an answer, with those of its reasoning (default: %(default)s)",
    ),
    declare(
        "--cost-limit",
        Scope.KERNELS,
        type=real("a number of dollars from 0 on", lambda number: number >= 0),
        metavar="USD",
        help="send no further request once the recorded attempts cost as much (default: no limit)",
    ),
    declare(
        "--prices",
        Scope.KERNELS,
        type=Path,
        metavar="FILE",
        help="YAML file with prices of models, such as `name: {in: 0.27, out: 1.1}` in $ for a million tokens, or "
        "`name: {request: 0.001}` (default: the prices in opatlas/generation/prices.yaml)",
    ),
    declare(
        "--language",
        Scope.KERNELS,
        choices=[language.value for language in KernelLanguage],
        help="what models write kernels in (default: triton on GPUs, triton-ascend on NPUs, else torch)",
    ),
)


@dataclass(frozen=True)
class ModelSettings:
    """What the options say about models.

    Attributes:
        models: the names of the models, by the name of their implementation.
        language: what kernels are written in.
        endpoint: the address of the endpoint; "" for recorded answers alone.
        api_key_variable: the name of the variable with its key; "" for none.
        answers: the folder of recorded answers; None: the one beside the attempts.
        limits: when a loop ends.
        prices: a file with prices; None: those that ship.
    """

    models: Mapping[str, str]
    language: KernelLanguage
    endpoint: str
    api_key_variable: str
    answers: Path | None
    limits: LoopLimits
    prices: Path | None

    def folder(self, database: Path) -> Path:
        """Returns the folder of attempts and candidates in a database of tasks."""
        return database / GENERATED / self.language.value

    def told(self) -> Mapping[str, object]:
        """Returns what a manifest records."""
        return {
            "models": list(self.models.values()),
            "language": self.language.value,
            "endpoint": self.endpoint,
            "api_key_variable": self.api_key_variable,
            "answers": self.answers.name if self.answers is not None else None,
            "attempts": self.limits.attempts,
            "max_tokens": self.limits.max_tokens,
            "cost_limit": self.limits.cost_usd,
            "prices": self.prices.name if self.prices is not None else None,
        }
