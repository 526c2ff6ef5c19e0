"""Objects for worker processes: they answer, fail, hang or die on request."""

import os
import threading

from grpo.errors import GenerationError


class Obedient:
    def __init__(self, number: int, fail: str | None = None):
        self.number = number
        if fail is not None:
            raise GenerationError(fail)

    def add(self, other: int) -> int:
        return self.number + other

    def pid(self) -> int:
        return os.getpid()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def refuse(self) -> None:
        raise GenerationError("I would rather not")

    def stumble(self) -> None:
        self._deeper_down()

    def _deeper_down(self) -> None:
        raise ZeroDivisionError("divided by nothing")

    def slow(self, seconds: float) -> str:
        threading.Event().wait(seconds)
        return "done"

    def hang(self) -> None:
        threading.Event().wait()

    def die(self) -> None:
        os._exit(3)
