"""Rounds in turns, each competitor in a process of its own with one thread."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from authors.clones import MissingError
from authors.released import Competitor, Numbers
from authors.tasks import WORKS, Work
from fedprior.engine import Engine

OURS = {1: "fedprior, 1 worker", 2: "fedprior, 2 workers"}
THEIRS = "the authors"


class Seat:
    """A competitor's process: asked for a round, it answers with seconds by the clock and of the processor."""

    def __init__(self, make: Callable[[], Competitor]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self._serve, args=(make, theirs))
        self.process.start()
        theirs.close()  # so that a process that ends is noticed
        answer = self._answer()
        if isinstance(answer, str):
            self.process.join()
            raise MissingError(answer)

    def _answer(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            raise MissingError("the clone's code failed, see above.") from None

    @staticmethod
    def _serve(make: Callable[[], Competitor], pipe: Any) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        try:
            run, numbers = make()
        except MissingError as error:
            pipe.send(str(error))
            return
        pipe.send(None)
        while (number := pipe.recv()) is not None:
            began, spent = time.perf_counter(), _cpu()
            run(number)
            pipe.send((time.perf_counter() - began, _cpu() - spent))
        pipe.send({k: v.double().numpy() for k, v in numbers().items()})

    def round(self, number: int) -> tuple[float, float]:
        self.pipe.send(number)
        seconds: tuple[float, float] = self._answer()
        return seconds

    def finish(self) -> Numbers:
        self.pipe.send(None)
        numbers = {k: torch.from_numpy(v) for k, v in self._answer().items()}
        self.process.join()
        return numbers


def _cpu() -> float:
    """Processor seconds of this process; worker processes are not in it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def compare(work: Work, clone: Path, turns: int, rounds: int) -> dict[str, Any]:
    data = work.data()
    method = work.bound(data)

    def engine(workers: int) -> Competitor:
        runner = Engine(method, data, 0, workers=workers)

        def numbers() -> Numbers:
            runner.__exit__(None, None, None)
            return work.ours(runner)

        return lambda number: runner.round(number, runner.everyone, runner.everyone), numbers

    seats = {THEIRS: Seat(lambda: work.theirs(clone, method, data))}
    seats |= {name: Seat(lambda workers=workers: engine(workers)) for workers, name in OURS.items()}  # type: ignore[misc]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in seats}
    for turn in range(turns):
        for name, seat in seats.items():
            times[name] += [seat.round(number) for number in range(rounds * turn, rounds * (turn + 1))]
    finals = {name: seat.finish() for name, seat in seats.items()}
    apart = {k: _apart(finals[THEIRS][k], finals[OURS[1]][k]) for k in work.near}
    seconds = {name: statistics.median(t[0] for t in each) for name, each in times.items()}
    cpu = {name: statistics.median(t[1] for t in each) for name, each in times.items()}
    result = {
        "task": work.title,
        "seconds": seconds,
        "ratio": {name: seconds[THEIRS] / s for name, s in seconds.items()},
        "cpu_ratio": cpu[THEIRS] / cpu[OURS[1]],
        "apart": apart,
        "same": all(apart[k] <= most for k, most in work.near.items()),
    }
    _show(result, rounds * turns)
    return result


def _apart(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The mean difference as a share of the mean size."""
    return float((theirs - ours).abs().mean() / theirs.abs().mean())


def _show(result: dict[str, Any], rounds: int) -> None:
    print(f"\n{result['task']}: median of {rounds} rounds")
    for name, value in result["seconds"].items():
        print(f"  {name:<20} {value * 1e3:9.1f} ms per round   {result['ratio'][name]:6.2f}×")
    print(f"  processor time, 1 worker {result['cpu_ratio']:.2f}×")
    told = ", ".join(f"{k} {value:.2g}" for k, value in result["apart"].items())
    print(f"  mean difference / mean size: {told}: {'the same' if result['same'] else 'NOT THE SAME'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in WORKS:
        parser.add_argument(f"--{name}", type=Path, help=f"clone of the authors' {name}")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name, works in WORKS.items():
        clone = getattr(options, name)
        for work in works:
            if clone is None:
                print(f"skipped: {work.title}: give the path of a clone with --{name}.")
                continue
            try:
                found.append(compare(work, clone.resolve(), options.turns, options.rounds))
            except MissingError as error:
                print(f"skipped: {work.title}: {error}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
